#!/usr/bin/env python3
"""Gate 1, what `.ci/run` runs from a clean clone: whether a change may be taken.

Must hold: packages, format, one build, README's test command for unit, simulation and process
tests without PyTorch's kin and long ones, three tests with PyTorch; a release, as users build it,
and some process tests of its programs. Nothing compiles beside tests. Then, for ten minutes, what
may hold: rooms under the sanitizers, headers, clang-tidy, the other process tests, where they
changed since they were last green, longest unseen first (gates/turns.py). It is red where one that
changed was not seen under a sanitizer for too long. What was seen is written into tests/PROVEN.md
of the work tree that this was cloned from. gates/phases.py has the rules for a phase.

MUSTER_CI_SECONDS is the time, from the start, at which phases that may hold end in any case (3300).
The last line is `N passed, N failed, N skipped`; the exit status is 0 or 1.
"""
import glob
import os
import signal
import subprocess
import sys

from gates import rooms
from gates.phases import Clock, Gate, Tests, ctest, say
from gates.proven import PATH, Proven
from gates.turns import Turns

DEV = "deploy/dev"
WITH_PYTORCH = ("Torch.TrainsWithDistributedDataParallelOnTwoNodes", "Torch.TrainsOnAfterARestart",
                "TorchHangs.NameARankThatDoesSomethingElse")
# What users start first, of each program and part: a release has another compiler's options and one
# unit for each library.
WITH_RELEASE = (
    "ExitCode.IsThatOfTheFailingWorkerAndTheOthersAreStopped",
    "Summary.NamesTheFirstFailingRankAndItsExitCode",
    "Console.ShowsEveryRank",
    "Script.WithTheSuffixPyIsRunByUnbufferedPython",
    "Options.ComeFromPetVariablesToo",
    "Logs.TeeWritesToFileAndConsole",
    "Restart.RepeatsTheWholeGroupUntilItSucceeds",
    "Restart.LeavesNothingOfTheEarlierAttemptRunning",
    "Stop.PassesAnInterruptOnAndWaitsForTheWorkers",
    "Stop.KillsAWorkerThatOutlivesItsGrace",
    "Leftovers.AreNoneAfterTheAgentWasKilled",
    "Leftovers.AreNoneAfterTheGuardianWasKilled",
    "SharedMemory.IsGoneAfterTheAgentWasKilled",
    "Worker.HasOnlyTheThreeStandardDescriptors",
    "Worker.NeverSeesTheSecret",
    "RuntimeDirectory.IsPrivateAndGoneWhenTheJobHasEnded",
    "Daemon.ServesTenJobsAtOnceAndKeepsThemApart",
    "Static.ARestartReachesEveryNodeWithTheSameCount",
    "Elastic.ALateJoinerMakesTheJobGrowWithoutCostingARestart",
    "Elastic.NodesGoOnWithoutAKilledAgentLongBeforeItsLeaseEnds",
    "ServerState.RunningWorkersOfSeveralJobsNoticeNothing",
    "ServerState.RestartsThatWereUsedStayUsed",
    "HostsTest.StartsAnAgentOnEachHostAndPassesEveryByteOn",
    "FileTimer.EndsTheWorkerThatIsLateAndIsNamedInTheRootCause",
    "Training.OfTwoRanksLearnsTheTextAndSaysSoOnce",
    "Resuming.GoesOnToTheSameParametersAsATrainingWithoutABreak",
    "Ending.BySignalSavesFirstAndTheTrainingGoesOnFromThere",
    "TrainRecovery.InTheProcessGoesOnFromTheStateOfTheRankThatSurvives",
    "StopStep.OfMusterTrainSavesOnAllRanksAndIsGoneOnFromToTheSameBits",
    "TrainingBits.AreThoseOfTheBuildOfThisTestAtEachInstructionSet",
)
SECONDS_OF_A_PEERS_TEST = 12
MAY_SECONDS = 600
# What there was at 3f26027c, when both had begun to weigh: lines of production code, and seconds of
# CPU that the programs of `deploy/dev run` took.
LINES_BEFORE, RELEASE_CPU_BEFORE = 125529, 964


class Gate1:
    def __init__(self, gate):
        self.gate = gate
        self.jobs = os.cpu_count() or 1
        self.texts = rooms.tree()
        self.turns = Turns(Proven())
        self.tests = None  # those of the build

    def must_hold(self):
        """Whether there is a build."""
        gate = self.gate
        if not gate.must("packages", [DEV, "deps"], 900):
            return False
        gate.must("format", [DEV, "format", "--check"], 120)
        with gate.must_beside("packages of peers", [DEV, "deps", "--peers"], 1500):
            built = gate.must("build", [DEV, "build", "dev"], 2400)
        if not built:
            return False
        tree = "build/dev"
        self.tests = Tests(tree)
        unit = [DEV, "test", "unit", "-j", str(self.jobs)]
        gate.must_tests("unit tests", unit, tree, 900, tries=1)
        simulation = [DEV, "test", "simulation", "-j", str(self.jobs)]
        gate.must_tests("simulation", simulation, tree, 300, tries=1)
        chosen, _ = self.tests.select("process", lambda test: (
            not {"peers", "long"} & set(test.labels) or test.name in WITH_PYTORCH), "integration")
        # They wait more than they compute.
        gate.must_tests("process tests", [DEV, "test", "integration", "-j", str(2 * self.jobs),
                                          *chosen], tree, 1800)
        self.release()
        return True

    def release(self):
        """As `deploy/dev run` builds it, but with kernels for every CPU."""
        gate = self.gate
        if not (gate.must("release, configured",
                          ["cmake", "--preset", "release", "-DMUSTER_ENABLE_CUDA=OFF"], 120) and
                gate.must("release, build", ["cmake", "--build", "build/release", "--target",
                                             "muster", "musterd", "muster-train"], 1200)):
            return
        kernels = glob.glob("build/release/worker_runtime/CMakeFiles/muster_runtime_kernels_*/"
                            "**/*.o", recursive=True)
        gate.must("release, functions that kernels share",
                  ["tests/unit/worker_runtime/kernels/shared_functions.py", "nm", *kernels], 60)
        there = {test.name for test in self.tests.all}
        gate.failures += [f"release: there is no test {name}" for name in WITH_RELEASE
                          if name not in there]
        chosen, _ = self.tests.select("release", lambda test: test.name in WITH_RELEASE)
        gate.must_tests("release, process tests", ctest(self.tests.tree, 2 * self.jobs, *chosen),
                        self.tests.tree, 600,
                        MUSTER_TEST_PROGRAMS=os.path.abspath("build/release/bin"))

    def plan_what_may_hold(self):
        """Also says what is overdue."""
        add, texts = self.turns.add, self.texts
        folders = rooms.test_folders()

        def touched(files):
            return rooms.folders_of_tests(rooms.rooms_touched(files, texts), folders)

        def production(files):
            return rooms.production_folders(files, texts)

        def programs(files):
            return rooms.programs_of_process_tests(files, texts)

        add("asan", folders, touched, self.sanitized(
            "asan", "tests_in", lambda test: "gpu" not in test.labels))
        add("tsan", folders, touched, self.sanitized(
            "tsan", "tests_with_threads_in", lambda test: "threads" in test.labels))
        add("process tests", programs(None), programs, self.other_process_tests)
        add("headers and annotations", production(None), production, lambda room: self.gate.may(
            f"headers and annotations: {room}", [DEV, "check", room], 900, seen="^--- "))
        add("clang-tidy", production(None), production, lambda room: self.gate.may(
            f"clang-tidy: {room}", [DEV, "tidy", room], 900, seen=": error: "))
        self.gate.failures += self.turns.overdue("asan", "tsan")

    def may_hold(self):
        clock = self.gate.clock
        clock.budget = min(clock.budget, clock.now() + MAY_SECONDS)
        self.turns.take(self.gate.has_time)

    def sanitized(self, preset, target, wanted):
        """The look at the unit and simulation tests of a folder."""
        def look(folder):
            name, tree = f"{preset}: {folder}", f"build/{preset}"
            of_folder = f"{target}_{folder[len('tests/'):].replace('/', '_')}"
            if not self.gate.may(f"{name}, build", [DEV, "build", preset, of_folder]):
                return False
            chosen, number = Tests(tree).select(
                "room", lambda test: test.room == folder and wanted(test))
            if number == 0:
                return None
            return self.gate.may_tests(name, ctest(tree, self.jobs, *chosen), tree)
        return look

    def other_process_tests(self, program):
        """The look at those of peers and long ones, if it fits the time left."""
        chosen, number = self.tests.select("others", lambda test: (
            {"peers", "long"} & set(test.labels) and test.name not in WITH_PYTORCH and
            test.program == program))
        if number == 0:
            return None
        if number * SECONDS_OF_A_PEERS_TEST > self.gate.seconds_left():
            return False
        return self.gate.may_tests(
            f"other process tests: {program}",
            ctest(self.tests.tree, self.jobs + 1, *chosen), self.tests.tree)

    def weigh(self):
        gate = self.gate
        gate.figures.append(f"{rooms.lines_of_production(self.texts)} lines of production code, "
                            f"{LINES_BEFORE} at 3f26027c")
        cpu = gate.cpu.get("release, build", 0)
        gate.figures.append(f"{cpu:.0f} s of CPU for a release (less where the compiler cache knew "
                            f"it), {RELEASE_CPU_BEFORE} at 3f26027c")
        gate.figures += self.turns.told()

    def tell_origin(self):
        """Where this is a clone of a work tree, that one learns what was seen."""
        origin = subprocess.run(["git", "config", "remote.origin.url"], capture_output=True,
                                text=True).stdout.strip()
        table = os.path.join(origin, PATH)
        if not self.turns.seen or not os.path.isabs(origin) or not os.access(table, os.W_OK):
            return
        head = rooms.git("rev-parse", "--short", "HEAD").strip()
        Proven(table).saw(self.turns.seen, head)
        say(f"\n=== {table} has what was seen: commit it with the next change")


def main():
    gate = Gate(Clock(float(os.environ.get("MUSTER_CI_SECONDS", "3300"))))
    for number in (signal.SIGTERM, signal.SIGINT):  # what runs is ended on the way out
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    one = Gate1(gate)
    one.plan_what_may_hold()
    if one.must_hold():
        one.may_hold()
    one.weigh()
    one.tell_origin()
    return gate.conclude()


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())

#!/usr/bin/env python3
"""Gate 1, what `.ci/run` runs from a clean clone: whether a change may be taken.

Must hold: packages, format, one build, README's test command for unit, simulation and process
tests without PyTorch's kin and long ones, three tests with PyTorch; a release, as users build it,
and some process tests of its programs. May hold, while the clock
allows: what changed since `deploy/dev prove`, gate 2, was green (tests/PROVEN.md), and the rooms
that include it, under the sanitizers, and its process tests of the other kinds. Nothing compiles
beside tests. gates/phases.py has the rules for a phase.

MUSTER_CI_SECONDS is the time, from the start, within which phases that may hold run (3300).
The last line is `N passed, N failed, N skipped`; the exit status is 0 or 1.
"""
import glob
import os
import signal
import subprocess
import sys

from gates import rooms
from gates.phases import Clock, Gate, Tests, ctest
from gates.proven import Proven

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
TIDY_FILES_MAX = 20
# What sanitized builds and tests take, as a multiple of plain ones: seen on two cores.
SANITIZED_STEP = 1.5
SANITIZED_TEST = 6
SECONDS_OF_A_PEERS_TEST = 12


class Gate1:
    def __init__(self, gate):
        self.gate = gate
        self.jobs = os.cpu_count() or 1
        self.proven, self.texts = Proven(), rooms.tree()
        self.seconds_per_step = self.seconds_per_test = 0

    def must_hold(self):
        """Whether there is a build."""
        gate = self.gate
        if not gate.must("packages", [DEV, "deps", "--peers"], 1500):
            return False
        gate.must("format", [DEV, "format", "--check"], 120)
        if not gate.must("build", [DEV, "build", "dev"], 2400):
            return False
        self.seconds_per_step = gate.seconds["build"] / max(1, self.steps_built())
        tree = "build/dev"
        tests = Tests(tree)
        unit = [DEV, "test", "unit", "-j", str(self.jobs)]
        gate.must_tests("unit tests", unit, tree, 900, tries=1)
        self.seconds_per_test = gate.seconds["unit tests"] / max(1, gate.passed)
        simulation = [DEV, "test", "simulation", "-j", str(self.jobs)]
        gate.must_tests("simulation", simulation, tree, 300, tries=1)
        chosen, _ = tests.select("process", lambda test: (
            not {"peers", "long"} & set(test.labels) or test.name in WITH_PYTORCH), "integration")
        gate.must_tests("process tests", [DEV, "test", "integration", "-j", str(self.jobs + 1),
                                          *chosen], tree, 1800)
        self.release(tests)
        return True

    def release(self, tests):
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
        chosen, number = tests.select("release", lambda test: test.name in WITH_RELEASE)
        if number != len(WITH_RELEASE):
            gate.failures.append(f"release: {number} of {len(WITH_RELEASE)} tests are there")
        gate.must_tests("release, process tests", ctest(tests.tree, self.jobs + 1, *chosen),
                        tests.tree, 600, MUSTER_TEST_PROGRAMS=os.path.abspath("build/release/bin"))

    def steps_built(self):
        with open("build/dev/.ninja_log", encoding="utf-8") as file:
            return len(file.readlines())

    def may_hold(self):
        self.sanitized("asan", "tests_in", lambda test: "gpu" not in test.labels, 1)
        self.sanitized("tsan", "tests_with_threads_in", lambda test: "threads" in test.labels, 0.5)
        since = self.base("headers and annotations")
        self.gate.may("headers and annotations of what changed",
                      [DEV, "check", *(["--since", since] if since else [])], 900, seen="^--- ")
        since = self.base("clang-tidy")
        self.gate.may("clang-tidy of what changed most", [DEV, "tidy", *([since] if since else [])],
                      600, seen=": error: ", MUSTER_TIDY_FILES=str(TIDY_FILES_MAX))
        self.other_process_tests()

    def base(self, phase):
        """The commit at which it was green, if this clone has it."""
        commit = self.proven.last_green(phase)
        return None if rooms.changed_files(commit) is None else commit

    def sanitized(self, preset, target, wanted, share):
        """The unit and simulation tests of rooms that changed; `share`: of the tests, about."""
        files = rooms.changed_files(self.proven.last_green(preset))
        all_folders = rooms.test_folders()
        folders = rooms.folders_of_tests(rooms.rooms_touched(files, self.texts), all_folders)
        if not folders:
            return
        named = f"{preset}: {len(folders)} of {len(all_folders)} folders of tests"
        share *= len(folders) / len(all_folders)
        targets = [f"{target}_{folder[len('tests/'):].replace('/', '_')}" for folder in folders]
        build = share * self.seconds_per_step * self.steps_built() * SANITIZED_STEP
        if not self.gate.may(f"{named}, build", [DEV, "build", preset, *targets], 2000, build):
            return
        tree = f"build/{preset}"
        chosen, number = Tests(tree).select(
            "rooms", lambda test: test.room in folders and wanted(test))
        if number:
            self.gate.may_tests(named, ctest(tree, self.jobs, *chosen), tree, 1500,
                                number * self.seconds_per_test * SANITIZED_TEST)

    def other_process_tests(self):
        files = rooms.changed_files(self.proven.last_green("process tests"))
        programs = rooms.programs_of_process_tests(files, self.texts)
        tree = "build/dev"
        chosen, number = Tests(tree).select("others", lambda test: (
            {"peers", "long"} & set(test.labels) and test.name not in WITH_PYTORCH and
            (programs is None or test.program in programs)))
        if number:
            self.gate.may_tests("process tests of peers and long ones that changed",
                                ctest(tree, self.jobs + 1, *chosen), tree, 1500,
                                number * SECONDS_OF_A_PEERS_TEST)


def main():
    gate = Gate(Clock(float(os.environ.get("MUSTER_CI_SECONDS", "3300"))))
    for number in (signal.SIGTERM, signal.SIGINT):  # what runs is ended on the way out
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    one = Gate1(gate)
    if one.must_hold():
        one.may_hold()
    return gate.conclude()


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())

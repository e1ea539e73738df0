#!/usr/bin/env python3
"""Decides whether a change may be taken: what `.ci/run` runs from a clean clone, phase by phase.

Phases that must hold run first and must finish. Those that may hold run while the clock allows:
one that was not begun, or that the clock ended, is named at the end and costs nothing. A failure
that was seen is red, whatever the clock says.

In a phase of tests, where at most five fail, they are run again, one at a time, up to twice. A test
that passes then is unsteady: green, and named at the end. Nothing compiles beside tests.

MUSTER_CI_SECONDS is the time, from the start, within which phases that may hold run (4200).
The last line is `N passed, N failed, N skipped`; the exit status is 0 or 1.
"""
import os
import re
import selectors
import signal
import subprocess
import sys
import time

TRIES = 3            # of a test, the first included
RETRIED_MAX = 5      # failing tests in a phase; with more of them none has a second chance
MUST_SECONDS = 5000  # from the start; CI ends a run after 5400
RETRY_SECONDS = 300  # beyond the clock, for tests that failed in a phase that may hold
WORTH_BEGINNING_SECONDS = 60
ENDING_SECONDS = 20  # from SIGTERM to SIGKILL

TEST_LINE = re.compile(r"^ *\d+/\d+ Test +#(\d+): (.+?) \.*\s*(Passed|\*\*\*.*?) +[\d.]+ sec")
START_LINE = re.compile(r"^ *Start +\d+: ")


def say(text):
    print(text, flush=True)


class Clock:
    """Seconds since the start."""

    def __init__(self, budget):
        self.begin = time.monotonic()
        self.budget = budget

    def now(self):
        return time.monotonic() - self.begin


class Running:
    """A process group that is read line by line and ended at a point of the clock."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(ENDING_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
            return

    def lines(self, clock, until):
        """Ends where the process has, also when something that it left behind holds its output."""
        output = self.process.stdout.fileno()
        os.set_blocking(output, False)
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                ended = self.process.poll() is not None
                if not ended and clock.now() >= until:
                    return
                if not selector.select(0 if ended else 1):
                    if ended:
                        break
                    continue
                data = os.read(output, 1 << 16)
                if not data:
                    break
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")
        try:
            self.process.wait(max(0, until - clock.now()))
        except subprocess.TimeoutExpired:
            pass


def run(command, clock, until, on_line=say, **environment):
    """The exit status; None if the clock ended the command."""
    running = Running(command, environment)
    with running.process.stdout:
        try:
            for line in running.lines(clock, until):
                on_line(line)
            return running.process.poll()
        finally:
            if running.process.poll() is None:
                running.end()


class Outcome:
    """What ctest said of each test, by number: names may change from one run to the next."""

    def __init__(self, clock, stop):
        self.clock, self.stop = clock, stop
        self.failed, self.skipped, self.passed = {}, set(), set()
        self.ended_by_clock = False
        self.output = {}  # of tests that failed, as lines
        self.last = None

    def read(self, line):
        found = TEST_LINE.match(line)
        if "The stop time has been passed" in line:
            self.ended_by_clock = True
        elif found:
            self.take(int(found[1]), found[2], found[3])
            if found[3] == "Passed":
                return
        elif START_LINE.match(line):
            return
        elif line.startswith("Total Test time") or "tests passed, " in line:
            self.last = None
        if self.last is not None:
            self.output[self.last].append(line)
        say(line)

    def take(self, number, name, status):
        self.last = None
        if status == "Passed":
            self.passed.add(number)
        elif status.startswith(("***Skipped", "***Not Run (Disabled)")):
            self.skipped.add(number)
        elif status.startswith("***Timeout") and self.clock.now() > self.stop - 5:
            self.ended_by_clock = True  # ctest gives a test the time that is left
        else:
            self.failed[number] = name
            self.output[number] = [f"{status[3:]}, load {os.getloadavg()[0]:.1f}"]
            self.last = number


class Gate:
    def __init__(self, clock):
        self.clock = clock
        self.failures, self.report, self.left_out, self.unsteady = [], [], [], []
        self.passed = self.failed = self.skipped = 0

    # Phases

    def must(self, name, command, **environment):
        return self.perform(name, MUST_SECONDS, lambda: self.command(
            name, command, MUST_SECONDS, must=True, **environment))

    def may(self, name, command, seen=None, **environment):
        """`seen`: a pattern of output that tells a failure although the clock ended the command."""
        return self.perform(name, self.clock.budget, lambda: self.command(
            name, command, self.clock.budget, must=False, seen=seen, **environment))

    def must_tests(self, name, command, tree):
        return self.perform(name, MUST_SECONDS, lambda: self.tests(
            name, command, tree, MUST_SECONDS, must=True))

    def may_tests(self, name, command, tree):
        return self.perform(name, self.clock.budget, lambda: self.tests(
            name, command, tree, self.clock.budget, must=False))

    def perform(self, name, until, act):
        """Whether the phase held."""
        if until - self.clock.now() < WORTH_BEGINNING_SECONDS and until != MUST_SECONDS:
            self.leave_out(f"{name}: not begun")
            return False
        begin = self.clock.now()
        say(f"\n=== {name}")
        held = act()
        seconds = self.clock.now() - begin
        self.report.append(f"{seconds:6.0f} s  {name}")
        if not held:
            say(f"\n=== {name} did not hold, {seconds:.0f} s")
        return held

    def command(self, name, command, until, must, seen=None, **environment):
        failure = []

        def read(line):
            if seen is not None and re.search(seen, line):
                failure.append(line)
            say(line)

        status = run(command, self.clock, until, read, **environment)
        if status == 0:
            return True
        if status is None and not must and not failure:
            self.leave_out(f"{name}: ended by the clock")
        else:
            self.failures.append(f"{name}: " + (
                f"exit status {status}" if status is not None else "ended by the clock" +
                "".join(f"; {line}" for line in failure[:3])))
        return False

    def tests(self, name, command, tree, until, must):
        outcome, status = self.ctest(command, until)
        failing = dict(outcome.failed)
        if 0 < len(failing) <= RETRIED_MAX:
            failing = self.once_more(outcome, tree, until + (0 if must else RETRY_SECONDS))
        self.passed += len(outcome.passed) + len(outcome.failed) - len(failing)
        self.failed += len(failing)
        self.skipped += len(outcome.skipped)
        self.failures += [f"{name}: {test}" for _, test in sorted(failing.items())]
        complete = self.complete(name, outcome, status, must)
        return complete and not failing

    def complete(self, name, outcome, status, must):
        if outcome.ended_by_clock or status is None:
            told = f"{name}: ended by the clock after {len(outcome.passed)} tests"
            if must:
                self.failures.append(told)
            else:
                self.leave_out(told)
            return False
        if status != 0 and not outcome.failed or not outcome.passed:
            passed = len(outcome.passed)
            self.failures.append(f"{name}: exit status {status}, {passed} tests passed")
            return False
        return True

    def ctest(self, command, until):
        """ctest ends at its stop time by itself; the clock ends what does not heed it."""
        outcome = Outcome(self.clock, until)
        left = max(1.0, until - self.clock.now())
        stop = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        status = run(command + ["--stop-time", stop], self.clock, until + ENDING_SECONDS,
                     outcome.read)
        return outcome, status

    def once_more(self, first, tree, until):
        """The tests that fail each time, of those that failed in `first`."""
        failing = dict(first.failed)
        for attempt in range(2, TRIES + 1):
            names = ", ".join(failing.values())
            say(f"\n=== attempt {attempt} of {TRIES}, one at a time: {names}")
            with open(os.path.join(tree, "Testing/Temporary/LastTestsFailed.log"), "w",
                      encoding="utf-8") as file:
                file.writelines(f"{number}:{name}\n" for number, name in failing.items())
            outcome, _ = self.ctest(["ctest", "--test-dir", tree, "--output-on-failure", "-j", "1",
                                     "--rerun-failed"], until)
            for number in outcome.passed | outcome.skipped:
                if failing.pop(number, None) is not None:
                    self.unsteady.append((first.failed[number], attempt, first.output[number]))
            if not failing or outcome.ended_by_clock:
                break
        return failing

    def leave_out(self, text):
        self.left_out.append(text)

    # The end

    def conclude(self):
        say(f"\n=== where the time went ({self.clock.now():.0f} s in all)")
        for row in self.report:
            say(row)
        if self.left_out:
            say("\n=== left out, for want of time")
            for row in self.left_out:
                say(row)
        if self.unsteady:
            say("\n=== unsteady: failed at first, passed alone")
            for name, attempt, output in self.unsteady:
                say(f"--- {name}: passed at attempt {attempt}; the first one said:")
                for line in output[-40:]:
                    say(f"    {line}")
        if self.failures:
            say("\n=== FAILED")
            for failure in self.failures:
                say(failure)
        say(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failures else 0


def ctest(tree, jobs, *selection):
    return ["ctest", "--test-dir", tree, "--output-on-failure", "--no-tests=error",
            "-j", str(jobs), *selection]


def main():
    clock = Clock(float(os.environ.get("MUSTER_CI_SECONDS", "4200")))
    gate = Gate(clock)

    for number in (signal.SIGTERM, signal.SIGINT):  # what runs is ended on the way out
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    jobs = os.cpu_count() or 1
    dev = "deploy/dev"

    if not gate.must("packages", [dev, "deps", "--peers"]):
        return gate.conclude()
    gate.must("format", [dev, "format", "--check"])
    if gate.must("build", [dev, "build", "dev"]):
        # README's test command, tier by tier.
        for tier, at_once in (("unit", jobs), ("simulation", jobs), ("integration", jobs + 1)):
            gate.must_tests(f"{tier} tests", [dev, "test", tier, "-j", str(at_once)], "build/dev")

    if gate.may("asan: build", [dev, "build", "asan"]):
        gate.may_tests("asan: unit and simulation tests",
                       ctest("build/asan", jobs, "-L", "unit|simulation", "-LE", "gpu"),
                       "build/asan")
        gate.may_tests("asan: integration tests without peers and long ones",
                       ctest("build/asan", jobs + 1, "-L", "integration", "-LE", "peers|gpu|long"),
                       "build/asan")
    if gate.may("tsan: build", [dev, "build", "tsan"]):
        gate.may_tests("tsan: tests with threads that link no gRPC",
                       ctest("build/tsan", jobs, "-L", "threads"), "build/tsan")
    gate.may("headers by themselves", [dev, "check", "--headers"], seen="^--- ")
    gate.may("clang-tidy of what changed most", [dev, "tidy"], seen=": error: ",
             MUSTER_TIDY_FILES="20")
    return gate.conclude()


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())

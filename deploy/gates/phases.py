"""Phases of commands and of tests, and what becomes of a change for what they do.

A phase that must hold has to finish within its limit. One that may hold runs while the clock
allows: one that the clock or its limit ended is named at the end and costs nothing. A failure that
was seen is red, whatever the clock says. All phases run, whatever failed before. What stands before
a colon in the name of a phase is the phase, what follows a part of it.

A test that fails is run again, alone, when all others of its phase are through, up to twice. One
that passes then is unsteady: green, and named at the end. Where more than RETRIED_MAX of a phase
fail, none has a second chance, and more than UNSTEADY_MAX unsteady tests are red: neither is luck.
Nor is a failure in a phase of tests that depend on no other process and no clock.
"""
import contextlib
import json
import math
import os
import re
import resource
import selectors
import signal
import subprocess
import tempfile
import time

TRIES = 3            # of a test, the first included, where a phase says no other number
RETRIED_MAX = 8      # failing tests in a phase
UNSTEADY_MAX = 3     # in all phases together
MUST_SECONDS = 3600  # from the start, for phases that must hold; CI ends a run after 5400
RETRY_SECONDS = 300  # beyond the clock, for tests that failed in a phase that may hold
WORTH_BEGINNING_SECONDS = 60
ENDING_SECONDS = 20  # from SIGTERM to SIGKILL

TEST_LINE = re.compile(r"^ *\d+/\d+ Test +#(\d+): (.+?) \.*\s*(Passed|\*\*\*.*?) +[\d.]+ sec")
START_LINE = re.compile(r"^ *Start +\d+: ")


def say(text):
    print(text, flush=True)


class Clock:
    """Seconds since the start; phases that may hold end at `budget`, those that must at `whole`."""

    def __init__(self, budget, whole=MUST_SECONDS):
        self.begin = time.monotonic()
        self.budget, self.whole = budget, whole

    def now(self):
        return time.monotonic() - self.begin


class Running:
    """A process group that is read line by line and ended at a point of the clock."""

    def __init__(self, command, environment, output=subprocess.PIPE):
        self.process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

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


def cpu_of_children():
    """Seconds, of those that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def listed_as_unsteady(path="tests/unsteady.txt"):
    """The names in the list, by what was seen and what is suspected: `name | seen | suspicion`."""
    rows = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    name, seen, suspicion = (cell.strip() for cell in line.split(" | "))
                    rows[name] = (seen, suspicion)
    return rows


class Gate:
    def __init__(self, clock):
        self.clock = clock
        self.failures, self.left_out, self.unsteady = [], [], []
        self.seconds, self.cpu = {}, {}  # of each phase that ran, in order
        self.figures = []  # lines for the end
        self.passed = self.failed = self.skipped = 0

    # Phases. `limit`: seconds that the phase may take.

    def must(self, name, command, limit=math.inf, **environment):
        until = min(self.clock.now() + limit, self.clock.whole)
        return self.perform(name, lambda: self.command(name, command, until, True, **environment))

    def must_tests(self, name, command, tree, limit=math.inf, tries=TRIES, **environment):
        until = min(self.clock.now() + limit, self.clock.whole)
        return self.perform(
            name, lambda: self.tests(name, command, tree, until, True, tries, **environment))

    def may(self, name, command, limit=math.inf, seen=None, **environment):
        """`seen`: a pattern of output that tells a failure although the clock ended the command."""
        until = min(self.clock.now() + limit, self.clock.budget)
        return self.perform(
            name, lambda: self.command(name, command, until, False, seen, **environment))

    def may_tests(self, name, command, tree, limit=math.inf):
        until = min(self.clock.now() + limit, self.clock.budget)
        return self.perform(
            name, lambda: self.tests(name, command, tree, until, False, TRIES))

    def seconds_left(self):
        """For phases that may hold."""
        return self.clock.budget - self.clock.now()

    def has_time(self):
        """Whether a phase that may hold is worth beginning."""
        return self.seconds_left() >= WORTH_BEGINNING_SECONDS

    @contextlib.contextmanager
    def must_beside(self, name, command, limit):
        """A command that must hold runs while the body does. Its output comes at the end."""
        begin = self.clock.now()
        with tempfile.TemporaryFile() as output:
            running = Running(command, {}, output)
            try:
                yield
                until = min(begin + limit, self.clock.whole)
                running.process.wait(max(0, until - self.clock.now()))
            except subprocess.TimeoutExpired:
                pass
            finally:
                if running.process.poll() is None:
                    running.end()
            output.seek(0)
            said = output.read().decode(errors="replace")
        say(f"\n=== {name}, beside the last phase\n{said}")
        if running.process.returncode != 0:
            self.failures.append(f"{name}: exit status {running.process.returncode}")

    def perform(self, name, act):
        """Whether the phase held."""
        begin, cpu = self.clock.now(), cpu_of_children()
        say(f"\n=== {name}")
        held = act()
        seconds = self.clock.now() - begin
        phase = name.split(":")[0]
        self.seconds[phase] = self.seconds.get(phase, 0) + seconds
        self.cpu[phase] = self.cpu.get(phase, 0) + cpu_of_children() - cpu
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

    def tests(self, name, command, tree, until, must, tries, **environment):
        outcome, status = self.ctest(command, until, **environment)
        failing = dict(outcome.failed)
        if 0 < len(failing) <= RETRIED_MAX:
            failing = self.once_more(
                outcome, tree, until + (0 if must else RETRY_SECONDS), tries, **environment)
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
        if not outcome.failed and (status != 0 or not outcome.passed):
            passed = len(outcome.passed)
            self.failures.append(f"{name}: exit status {status}, {passed} tests passed")
            return False
        return True

    def ctest(self, command, until, **environment):
        """ctest ends at its stop time by itself; the clock ends what does not heed it."""
        outcome = Outcome(self.clock, until)
        left = min(max(1.0, until - self.clock.now()), 80000)  # ctest takes a time of day
        stop = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        status = run(command + ["--stop-time", stop], self.clock, until + ENDING_SECONDS,
                     outcome.read, **environment)
        return outcome, status

    def once_more(self, first, tree, until, tries, **environment):
        """The tests that fail each time, of those that failed in `first`."""
        failing = dict(first.failed)
        for attempt in range(2, tries + 1):
            names = ", ".join(failing.values())
            say(f"\n=== attempt {attempt} of {tries}, one at a time: {names}")
            with open(os.path.join(tree, "Testing/Temporary/LastTestsFailed.log"), "w",
                      encoding="utf-8") as file:
                file.writelines(f"{number}:{name}\n" for number, name in failing.items())
            outcome, _ = self.ctest(["ctest", "--test-dir", tree, "--output-on-failure", "-j", "1",
                                     "--rerun-failed"], until, **environment)
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
        for name, seconds in self.seconds.items():
            say(f"{seconds:6.0f} s  {name}, {self.cpu[name]:.0f} s of CPU")
        for heading, rows in (("figures", self.figures), ("ended by the clock", self.left_out)):
            if rows:
                say("\n".join(["", f"=== {heading}", *rows]))
        if self.unsteady:
            say("\n=== unsteady: failed at first, passed alone")
            listed = listed_as_unsteady()
            for name, attempt, output in self.unsteady:
                known = "is" if name in listed else "belongs"
                say(f"--- {name}: passed at attempt {attempt}, {known} in tests/unsteady.txt; "
                    "the first one said:")
                for line in output[-40:]:
                    say(f"    {line}")
        if len(self.unsteady) > UNSTEADY_MAX:
            self.failures.append(f"{len(self.unsteady)} tests were unsteady: that is no luck")
        if self.failures:
            say("\n=== FAILED")
            for failure in self.failures:
                say(failure)
        say(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failures else 0


class Tests:
    """The tests of a build tree, in the order in which ctest counts them."""

    def __init__(self, tree):
        self.tree = tree
        told = subprocess.run(["ctest", "--test-dir", tree, "--show-only=json-v1"],
                              capture_output=True, check=True).stdout
        self.all = [self.Test(test, tree) for test in json.loads(told)["tests"]]

    class Test:
        def __init__(self, told, tree):
            properties = {one["name"]: one["value"] for one in told["properties"]}
            self.name = told["name"]
            self.labels = "-".join(properties.get("LABELS", [])).split("-")
            self.room = os.path.relpath(properties["WORKING_DIRECTORY"], os.path.abspath(tree))
            self.program = os.path.basename(told.get("command", [""])[0])

    def select(self, name, wanted, label=None):
        """ctest's arguments for those tests that are `wanted`, and how many they are.

        With -L ctest counts those that have the label, so `label` must be the one that is given.
        """
        among = [test for test in self.all if label is None or label in test.labels]
        numbers = [number for number, test in enumerate(among, 1) if wanted(test)]
        path = os.path.join(os.path.abspath(self.tree), f"Testing/{name}.tests")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(",".join(map(str, [0, 0, 0, *numbers])) + "\n")  # ctest reads whole lines
        return ["-I", path], len(numbers)


def ctest(tree, jobs, *selection):
    return ["ctest", "--test-dir", tree, "--output-on-failure", "--no-tests=error",
            "-j", str(jobs), *selection]

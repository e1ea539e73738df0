#!/usr/bin/env python3
"""Gate 2, `deploy/dev prove [PHASE…]`: everything, whole and without a budget, phase by phase.

Writes tests/PROVEN.md after each phase. One that was green at this commit, the table itself apart,
is not run again, so a run that was ended is gone on with by the same command.
"""
import datetime
import math
import os
import signal
import subprocess
import sys

from gates.phases import TRIES, Clock, Gate, Tests, ctest, listed_as_unsteady, say
from gates.proven import PATH, Proven

DEV = "deploy/dev"
UNSTEADY_ROWS_MAX = 10
HOURS = 3600
JOBS = os.cpu_count() or 1


def built(gate, preset):
    return gate.must(f"build {preset}", [DEV, "build", preset], 2 * HOURS)


def tests_of(preset, jobs, wanted, tries=TRIES, options=(), **environment):
    """The phase of those tests of a preset that are `wanted`; `options` are ctest's."""
    def run(gate):
        tree = f"build/{preset}"
        if built(gate, preset):
            chosen, _ = Tests(tree).select("prove", lambda test: wanted(set(test.labels)))
            gate.must_tests("tests", ctest(tree, jobs, *chosen, *options), tree, 4 * HOURS, tries,
                            **environment)
    return run


def soak_of(wanted):
    """The phase of those process and simulation tests that are `wanted`, five times each."""
    return tests_of("dev", JOBS + 1,
                    lambda labels: labels & {"integration", "simulation"} and wanted(labels),
                    tries=1, options=("--repeat", "until-fail:5"))


def command(*words, **environment):
    return lambda gate: gate.must(" ".join(words[1:]), list(words), 6 * HOURS, **environment)


def unsteady_list(gate):
    rows = len(listed_as_unsteady())
    if rows > UNSTEADY_ROWS_MAX:
        gate.failures.append(f"tests/unsteady.txt has {rows} rows")


NOT_SANITIZED = {"peers", "long", "gpu"}
PHASES = {
    "unsteady tests": unsteady_list,
    "unit tests": tests_of("dev", JOBS, lambda labels: labels & {"unit", "simulation"},
                           tries=1),
    "process tests": tests_of("dev", JOBS + 1, lambda labels: "integration" in labels,
                              MUSTER_TEST_ALL_RANKS="1", MUSTER_TEST_PEERS="live"),
    "asan": tests_of("asan", JOBS, lambda labels: labels & {"unit", "simulation"}),
    "asan, process tests": tests_of(
        "asan", JOBS + 1, lambda labels: "integration" in labels and not labels & NOT_SANITIZED),
    "tsan": tests_of("tsan", JOBS, lambda labels: "threads" in labels),
    "headers and annotations": command(DEV, "check"),
    "clang-tidy": command(DEV, "tidy"),
    "simulator": command(DEV, "simulate", "--seeds=100000"),
    "release": command(DEV, "release"),
    # About an hour each.
    "soak": soak_of(lambda labels: not labels & {"peers", "long"}),
    "soak, peers": soak_of(lambda labels: "peers" in labels and "long" not in labels),
    "soak, long tests": soak_of(lambda labels: "long" in labels and "peers" not in labels),
    "soak, long tests of peers": soak_of(lambda labels: {"long", "peers"} <= labels),
}


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def is_head(commit):
    """Whether nothing but what a run writes has changed since."""
    known = subprocess.run(["git", "diff", "--quiet", commit, "HEAD", "--", ".", f":!{PATH}"],
                           capture_output=True)
    return known.returncode == 0


def prove(name):
    """Whether the phase is green at HEAD."""
    last = Proven().last_green(name)
    if last is not None and is_head(last):
        say(f"=== {name}: green at {last}")
        return True
    say(f"\n=== phase {name}")
    gate = Gate(Clock(math.inf, math.inf))
    PHASES[name](gate)
    seconds = gate.clock.now()
    gate.conclude()
    Proven().record(name, git("rev-parse", "--short", "HEAD").strip(),
                    datetime.date.today().isoformat(), seconds, gate.failures,
                    [test for test, _, _ in gate.unsteady])
    return not gate.failures


def main(names):
    for number in (signal.SIGTERM, signal.SIGINT):  # what runs is ended on the way out
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    unknown = [name for name in names if name not in PHASES]
    if unknown:
        sys.exit(f"deploy/dev prove: unknown phase '{unknown[0]}'; expected {', '.join(PHASES)}")
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PATH}")
    if dirty:
        sys.exit(f"deploy/dev prove: a commit is proven, and these are not committed:\n{dirty}")
    red = [name for name in names or PHASES if not prove(name)]
    with open(PATH, encoding="utf-8") as file:
        say(f"\n{file.read()}")
    if red:
        sys.exit(f"deploy/dev prove: red: {', '.join(red)}")


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    main(sys.argv[1:])

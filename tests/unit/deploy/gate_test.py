#!/usr/bin/env python3
"""The rules of deploy/gate.py: phases are shell commands, and a real ctest runs shell tests."""
import contextlib
import io
import os
import signal
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
sys.path.insert(0, os.path.join(ROOT, "deploy"))
import gate  # noqa: E402

PASSES = "true"
SLEEPS = "sleep 60"
SKIPS = "echo not-here"


def fails_once(name):
    """Fails where it has not run before; leaves a line for each run."""
    return (f"test -e {name} && echo again >> {name} || "
            f"{{ echo first > {name}; echo broken-{name}; false; }}")


def fails(name):
    return f"echo run >> {name}; false"


class GateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name
        self.addCleanup(setattr, gate, "WORTH_BEGINNING_SECONDS", gate.WORTH_BEGINNING_SECONDS)
        gate.WORTH_BEGINNING_SECONDS = 0

    def ctest_of(self, *commands):
        """The command of a ctest over `commands`, one test each, named t0, t1, …"""
        with open(os.path.join(self.tree, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            for number, command in enumerate(commands):
                file.write(f"""
                    add_test(t{number} /bin/sh -c [==[cd {self.tree}; {command}]==])
                    set_tests_properties(t{number} PROPERTIES SKIP_REGULAR_EXPRESSION not-here)
                """)
        return gate.ctest(self.tree, 2)

    def runs(self, name):
        with open(os.path.join(self.tree, name), encoding="utf-8") as file:
            return len(file.readlines())

    def conclude(self, phases, budget=100):
        """What `phases`, a function of the gate, make of it: exit status, lines of output."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            one = gate.Gate(gate.Clock(budget))
            phases(one)
            status = one.conclude()
        return status, text.getvalue().splitlines()

    def concludes_green(self, phases, **options):
        status, lines = self.conclude(phases, **options)
        self.assertEqual(status, 0, "\n".join(lines))
        return lines

    def concludes_red(self, phases, **options):
        status, lines = self.conclude(phases, **options)
        self.assertEqual(status, 1, "\n".join(lines))
        return lines

    def test_is_green_where_all_hold_and_counts_them(self):
        command = self.ctest_of(PASSES, PASSES, SKIPS)
        lines = self.concludes_green(lambda one: one.must_tests("tests", command, self.tree))
        self.assertEqual(lines[-1], "2 passed, 0 failed, 1 skipped")

    def test_a_test_that_passes_alone_is_unsteady_and_named_with_what_it_said_first(self):
        command = self.ctest_of(PASSES, fails_once("a"))
        lines = self.concludes_green(lambda one: one.must_tests("tests", command, self.tree))
        self.assertEqual(lines[-1], "2 passed, 0 failed, 0 skipped")
        heading = next(number for number, line in enumerate(lines) if "=== unsteady" in line)
        self.assertIn("t1: passed at attempt 2", lines[heading + 1])
        self.assertTrue(any("broken-a" in line for line in lines[heading:]))

    def test_a_test_that_fails_three_times_is_red(self):
        command = self.ctest_of(PASSES, fails("a"), fails_once("b"))
        lines = self.concludes_red(lambda one: one.must_tests("tests", command, self.tree))
        self.assertEqual(lines[-1], "2 passed, 1 failed, 0 skipped")
        self.assertEqual(self.runs("a"), 3)
        self.assertIn("tests: t1", lines)

    def test_six_failures_have_no_second_chance(self):
        command = self.ctest_of(*[fails_once(name) for name in "abcdef"])
        lines = self.concludes_red(lambda one: one.must_tests("tests", command, self.tree))
        self.assertEqual(lines[-1], "0 passed, 6 failed, 0 skipped")
        self.assertEqual(self.runs("a"), 1)

    def test_a_phase_without_tests_is_red(self):
        command = self.ctest_of()
        self.concludes_red(lambda one: one.must_tests("tests", command, self.tree))

    def test_tests_that_the_clock_ended_cost_nothing_where_they_may_hold(self):
        command = self.ctest_of(PASSES, SLEEPS, SLEEPS, SLEEPS)
        lines = self.concludes_green(
            lambda one: one.may_tests("tests", command, self.tree), budget=4)
        self.assertIn("tests: ended by the clock after 1 tests", lines)
        self.assertEqual(lines[-1], "1 passed, 0 failed, 0 skipped")

    def test_a_failure_seen_before_the_clock_ended_the_tests_is_red(self):
        command = self.ctest_of(fails("a"), SLEEPS, SLEEPS)
        lines = self.concludes_red(
            lambda one: one.may_tests("tests", command, self.tree), budget=4)
        self.assertIn("tests: t0", lines)
        self.assertEqual(self.runs("a"), 3)

    def test_a_command_that_the_clock_ended_costs_nothing_where_it_may_hold(self):
        lines = self.concludes_green(lambda one: one.may("build", ["sh", "-c", SLEEPS]), budget=1)
        self.assertIn("build: ended by the clock", lines)

    def test_a_failure_told_before_the_clock_ended_the_command_is_red(self):
        command = ["sh", "-c", f"echo 'a.cc:1: error: x'; {SLEEPS}"]
        self.concludes_red(lambda one: one.may("tidy", command, seen=": error: "), budget=1)

    def test_what_must_hold_runs_beyond_the_clock_and_what_may_hold_is_not_begun(self):
        def phases(one):
            one.must("build", ["sh", "-c", "sleep 1; echo built"])
            one.may("more", ["sh", "-c", "echo begun"])

        gate.WORTH_BEGINNING_SECONDS = 1
        lines = self.concludes_green(phases, budget=1)
        self.assertIn("built", lines)
        self.assertIn("more: not begun", lines)
        self.assertNotIn("begun", lines)

    def test_phases_after_a_failure_run_too(self):
        def phases(one):
            one.must("format", ["false"])
            one.may("build", ["sh", "-c", "echo built; exit 3"])

        lines = self.concludes_red(phases)
        self.assertIn("built", lines)
        self.assertIn("format: exit status 1", lines)
        self.assertIn("build: exit status 3", lines)

    def test_a_process_that_keeps_the_output_open_holds_nothing_up(self):
        holder = os.path.join(self.tree, "holder")
        command = f"setsid sh -c 'echo $$ > {holder}; exec sleep 100' & " \
                  f"until test -s {holder}; do sleep 0.01; done; echo built"
        lines = self.concludes_green(lambda one: one.must("build", ["sh", "-c", command]))
        self.assertIn("built", lines)
        with open(holder, encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGKILL)  # fails where it has ended before


if __name__ == "__main__":
    unittest.main()

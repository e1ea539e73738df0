#!/usr/bin/env python3
"""The rules of deploy/gates: phases are shell commands, and a real ctest runs shell tests."""
import contextlib
import io
import os
import signal
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
sys.path.insert(0, os.path.join(ROOT, "deploy"))
from gates import phases, rooms, turns  # noqa: E402
from gates.proven import Proven  # noqa: E402

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
        self.addCleanup(setattr, phases, "WORTH_BEGINNING_SECONDS", phases.WORTH_BEGINNING_SECONDS)
        phases.WORTH_BEGINNING_SECONDS = 0

    def ctest_of(self, *commands):
        """The command of a ctest over `commands`, one test each, named t0, t1, …"""
        with open(os.path.join(self.tree, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            for number, command in enumerate(commands):
                file.write(f"""
                    add_test(t{number} /bin/sh -c [==[cd {self.tree}; {command}]==])
                    set_tests_properties(t{number} PROPERTIES SKIP_REGULAR_EXPRESSION not-here
                                         LABELS {"odd" if number % 2 else "even"})
                """)
        return phases.ctest(self.tree, 2)

    def runs(self, name):
        with open(os.path.join(self.tree, name), encoding="utf-8") as file:
            return len(file.readlines())

    def conclude(self, act, budget=100):
        """What `act`, a function of the gate, make of it: exit status, lines of output."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            one = phases.Gate(phases.Clock(budget))
            act(one)
            status = one.conclude()
        return status, text.getvalue().splitlines()

    def concludes_green(self, act, **options):
        status, lines = self.conclude(act, **options)
        self.assertEqual(status, 0, "\n".join(lines))
        return lines

    def concludes_red(self, act, **options):
        status, lines = self.conclude(act, **options)
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

    def test_nine_failures_have_no_second_chance(self):
        command = self.ctest_of(*[fails_once(name) for name in "abcdefghi"])
        lines = self.concludes_red(lambda one: one.must_tests("tests", command, self.tree))
        self.assertEqual(lines[-1], "0 passed, 9 failed, 0 skipped")
        self.assertEqual(self.runs("a"), 1)

    def test_where_a_phase_gives_one_try_a_failure_is_red(self):
        command = self.ctest_of(PASSES, fails_once("a"))
        lines = self.concludes_red(
            lambda one: one.must_tests("unit", command, self.tree, tries=1))
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")
        self.assertIn("unit: t1", lines)
        self.assertEqual(self.runs("a"), 1)

    def test_three_unsteady_tests_are_green_and_four_are_red(self):
        three = self.ctest_of(*[fails_once(name) for name in "abc"])
        self.concludes_green(lambda one: one.must_tests("tests", three, self.tree))
        four = self.ctest_of(*[fails_once(name) for name in "defg"])
        lines = self.concludes_red(lambda one: one.must_tests("tests", four, self.tree))
        self.assertIn("4 tests were unsteady: that is no luck", lines)

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

    def test_what_must_hold_runs_beyond_the_clock(self):
        def phases_of(one):
            one.must("build", ["sh", "-c", "sleep 1; echo built"])
            self.assertFalse(one.has_time())

        phases.WORTH_BEGINNING_SECONDS = 1
        lines = self.concludes_green(phases_of, budget=1)
        self.assertIn("built", lines)

    def test_parts_of_a_phase_have_one_line_of_time(self):
        def phases_of(one):
            one.may("look: a", ["true"])
            one.may("look: b", ["sh", "-c", "exit 3"])

        lines = self.concludes_red(phases_of)
        self.assertEqual(sum("s  look," in line for line in lines), 1)
        self.assertIn("look: b: exit status 3", lines)

    def test_what_runs_beside_a_phase_is_waited_for_and_must_hold(self):
        def phases_of(one):
            with one.must_beside("packages", ["sh", "-c", f"{command}; echo fetched"], limit):
                one.must("build", ["sh", "-c", "echo built"])

        command, limit = "sleep 1", 60
        lines = self.concludes_green(phases_of)
        self.assertLess(lines.index("built"), lines.index("fetched"))
        command = "false; exit 4"
        self.assertIn("packages: exit status 4", self.concludes_red(phases_of))
        command, limit = SLEEPS, 1
        self.assertTrue(any(line.startswith("packages: exit status -")
                            for line in self.concludes_red(phases_of)))

    def test_a_phase_that_must_hold_is_red_at_its_limit(self):
        lines = self.concludes_red(lambda one: one.must("build", ["sh", "-c", SLEEPS], limit=1))
        self.assertIn("build: ended by the clock", lines)

    def test_a_phase_that_may_hold_costs_nothing_at_its_limit(self):
        command = self.ctest_of(PASSES, SLEEPS, SLEEPS)
        lines = self.concludes_green(
            lambda one: one.may_tests("tests", command, self.tree, limit=4))
        self.assertIn("tests: ended by the clock after 1 tests", lines)

    def test_tests_and_their_second_chance_have_the_environment_of_their_phase(self):
        fails_at_first = fails_once("a")
        command = self.ctest_of(f"test $OF_THIS_PHASE = yes || exit 3; {fails_at_first}")
        self.concludes_green(
            lambda one: one.must_tests("tests", command, self.tree, OF_THIS_PHASE="yes"))
        self.assertEqual(self.runs("a"), 2)
        self.assertNotIn("OF_THIS_PHASE", os.environ)

    def test_a_selection_by_number_runs_what_was_wanted(self):
        command = self.ctest_of(fails("a"), PASSES, fails("b"), PASSES)
        chosen, number = phases.Tests(self.tree).select(
            "some", lambda test: test.name in ("t1", "t3"))
        self.assertEqual(number, 2)
        lines = self.concludes_green(
            lambda one: one.must_tests("tests", command + chosen, self.tree))
        self.assertEqual(lines[-1], "2 passed, 0 failed, 0 skipped")

    def test_a_selection_among_those_of_a_label_counts_these(self):
        command = self.ctest_of(fails("a"), fails("b"), fails("c"), PASSES)
        chosen, _ = phases.Tests(self.tree).select("some", lambda test: test.name == "t3", "odd")
        lines = self.concludes_green(
            lambda one: one.must_tests("tests", command + ["-L", "odd"] + chosen, self.tree))
        self.assertEqual(lines[-1], "1 passed, 0 failed, 0 skipped")

    def test_phases_after_a_failure_run_too(self):
        def phases_of(one):
            one.must("format", ["false"])
            one.may("build", ["sh", "-c", "echo built; exit 3"])

        lines = self.concludes_red(phases_of)
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


class RoomsTest(unittest.TestCase):
    TEXTS = {
        "agent/core/core.h": "",
        "agent/core/core.cc": '#include "agent/core/core.h"\n',
        "agent/watch/watch.cc": '#include "agent/core/core.h"\n',
        "worker_runtime/nn/nn.cc": '#include "muster/plan.h"\n',
        "tests/unit/agent/watch/w_test.cc": '#include "tests/support/files.h"\n',
        "tests/integration/hang_test.cc": "Run(MUSTER_HANGING_RANK)",
        "tests/integration/stop_test.cc": 'Python("stopping.py")',
    }
    FOLDERS = {"tests/unit/agent/core", "tests/unit/agent/watch", "tests/unit/worker_runtime",
               "tests/support"}

    def folders(self, *files):
        return rooms.folders_of_tests(rooms.rooms_touched(files, self.TEXTS), self.FOLDERS)

    def test_a_change_touches_its_room_and_those_that_include_it(self):
        self.assertEqual(self.folders("agent/core/core.cc"),
                         ["tests/unit/agent/core", "tests/unit/agent/watch"])
        self.assertEqual(self.folders("agent/watch/watch.cc"), ["tests/unit/agent/watch"])

    def test_public_headers_are_included_by_a_name_of_their_own(self):
        self.assertEqual(self.folders("worker_runtime/include/muster/plan.h"),
                         ["tests/unit/worker_runtime"])

    def test_tools_of_tests_touch_the_tests_that_use_them(self):
        self.assertEqual(self.folders("tests/support/files.h"),
                         ["tests/support", "tests/unit/agent/watch"])

    def test_what_is_of_no_room_touches_nothing_and_how_all_is_built_touches_all(self):
        self.assertEqual(self.folders("README.md"), [])
        self.assertEqual(self.folders("CMakeLists.txt"), sorted(self.FOLDERS))
        self.assertIsNone(rooms.changed_files("no-such-commit"))
        self.assertEqual(rooms.folders_of_tests(rooms.rooms_touched(None, self.TEXTS),
                                                self.FOLDERS), sorted(self.FOLDERS))

    def test_process_tests_change_with_the_programs_that_they_name(self):
        def programs(file):
            return rooms.programs_of_process_tests([file], self.TEXTS)

        self.assertEqual(rooms.programs_of_process_tests(None, self.TEXTS),
                         {"integration_stop_test", "integration_hang_test"})
        self.assertEqual(programs("tests/integration/stop_test.cc"), {"integration_stop_test"})
        self.assertEqual(programs("tests/integration/programs/stopping.py"),
                         {"integration_stop_test"})
        self.assertEqual(programs("tests/integration/programs/hanging_rank.cc"),
                         {"integration_hang_test"})


    def test_production_lies_outside_tests(self):
        self.assertEqual(rooms.production_folders(["agent/core/core.cc", "README.md"], self.TEXTS),
                         {"agent/core"})
        self.assertEqual(rooms.production_folders(None, self.TEXTS),
                         {"agent/core", "agent/watch", "worker_runtime/nn"})
        self.assertEqual(rooms.lines_of_production(self.TEXTS), 3)


class TurnsTest(unittest.TestCase):
    """A history of five commits, of which C1, C2 and C3 change C++: rooms a, b and a again."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        self.table = os.path.join(folder.name, "PROVEN.md")
        self.git("init", "-q")
        self.commits = [self.commit(file) for file in (
            "README.md", "a/x.cc", "b/x.cc", "README.md", "a/x.cc")]

    def git(self, *words):
        return rooms.git("-c", "user.name=t", "-c", "user.email=t@t", *words).strip()

    def commit(self, file):
        os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
        with open(file, "a", encoding="utf-8") as text:
            text.write("line\n")
        self.git("add", file)
        self.git("commit", "-q", "-m", file)
        return self.git("rev-parse", "HEAD")

    def turns(self, *phases_of_turns, all_rooms=("a", "b"), look=lambda room: True):
        one = turns.Turns(Proven(self.table))
        for phase in phases_of_turns:
            one.add(phase, all_rooms, lambda files: set(all_rooms) if files is None else {
                os.path.dirname(file) for file in files}, look)
        return one

    def prove(self, phase, commit):
        Proven(self.table).record(phase, commit, "2026-01-02", 1, [], [])

    @staticmethod
    def waiting(one):
        return [(turn.phase, turn.room, turn.age) for turn in one.waiting]

    def test_rooms_that_changed_since_they_were_green_wait_and_the_oldest_is_first(self):
        self.prove("asan", self.commits[2])
        self.prove("tsan", self.commits[0])
        Proven(self.table).saw([("tsan", "b")], self.commits[1])
        self.assertEqual(self.waiting(self.turns("asan", "tsan")),
                         [("tsan", "a", 3), ("tsan", "b", 2), ("asan", "a", 1)])

    def test_what_was_never_seen_is_first_of_all(self):
        self.prove("tsan", self.commits[0])
        Proven(self.table).saw([("asan", "a")], "no-such-commit")
        self.assertEqual([row[:2] for row in self.waiting(self.turns("tsan", "asan"))],
                         [("asan", "a"), ("asan", "b"), ("tsan", "a"), ("tsan", "b")])

    def test_a_phase_with_less_patience_comes_before_an_older_one(self):
        self.addCleanup(turns.PATIENCE.update, dict(turns.PATIENCE))
        turns.PATIENCE.update({"asan": 3, "clang-tidy": 10})
        self.prove("clang-tidy", self.commits[0])
        self.prove("asan", self.commits[2])
        self.assertEqual(self.waiting(self.turns("clang-tidy", "asan"))[0], ("asan", "a", 1))

    def test_looks_are_taken_while_there_is_time_and_those_that_held_are_not_taken_again(self):
        self.prove("asan", self.commits[0])
        looked = []
        one = self.turns("asan", look=lambda room: looked.append(room) or room == "b")
        one.take(lambda: len(looked) < 2)
        self.assertEqual(looked, ["a", "b"])
        self.assertEqual(one.seen, [("asan", "b")])
        self.assertEqual(list(one.told()),
                         ["asan: 1 rooms seen, 1 wait, the oldest not seen for 3 commits"])
        Proven(self.table).saw(one.seen, self.commits[4])
        self.assertEqual(self.waiting(self.turns("asan")), [("asan", "a", 3)])
        none = self.turns("asan", look=lambda room: looked.append(room))
        none.take(lambda: False)
        self.assertEqual(len(looked), 2)

    def test_a_whole_phase_that_was_green_makes_what_rooms_were_superfluous(self):
        self.prove("asan", self.commits[0])
        Proven(self.table).saw([("asan", "a"), ("tsan", "a")], self.commits[1])
        self.prove("asan", self.commits[4])
        self.assertEqual(self.waiting(self.turns("asan")), [])
        self.assertEqual(Proven(self.table).rooms, {("tsan", "a"): self.commits[1]})

    def test_a_room_that_changed_and_was_not_seen_for_too_long_is_told(self):
        self.addCleanup(turns.PATIENCE.update, dict(turns.PATIENCE))
        turns.PATIENCE["asan"] = 2
        self.prove("asan", self.commits[0])
        Proven(self.table).saw([("asan", "b")], self.commits[1])
        self.assertEqual(list(self.turns("asan", "clang-tidy").overdue("asan")), [
            "asan: not green for more than 2 commits, and changed; run deploy/dev prove asan: a"])
        self.assertEqual(list(self.turns("tsan").overdue("tsan")), [])  # never seen, so first


class ProvenTest(unittest.TestCase):
    def test_a_red_run_keeps_the_commit_that_was_green(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "PROVEN.md")
            self.assertIsNone(Proven(path).last_green("asan"))
            Proven(path).record("asan", "abc", "2026-01-02", 12.3, [], ["A.B"])
            Proven(path).record("tsan", "abc", "2026-01-02", 5, ["tests: C.D"], [])
            Proven(path).record("asan", "def", "2026-01-03", 20, ["tests: A.B", "x | y"], [])
            self.assertEqual(Proven(path).last_green("asan"), "abc")
            self.assertIsNone(Proven(path).last_green("tsan"))
            with open(path, encoding="utf-8") as file:
                self.assertIn("red, def of 2026-01-03: tests: A.B; x / y", file.read())

    def test_the_list_of_unsteady_tests_has_what_was_seen_and_what_is_suspected(self):
        for seen, suspicion in phases.listed_as_unsteady(
                os.path.join(ROOT, "tests/unsteady.txt")).values():
            self.assertTrue(seen and suspicion)


if __name__ == "__main__":
    unittest.main()

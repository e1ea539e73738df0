#include "launcher/node/exit_summary.h"

#include <csignal>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

WorkerFailure Rank5() {
  return {.rank = Rank(5),
          .local_rank = LocalRank(1),
          .node_rank = NodeRank(1),
          .node_name = "node2",
          .pid = 4242,
          .exit_code = 7,
          .unix_millis = 1767225600123};  // 2026-01-01T00:00:00.123Z
}

JobOutcome Failed(const WorkerFailure& root) {
  return {.exit_code = ExitCodeOf(root),
          .reason = "rank 5 on node2 failed and no restarts are left",
          .root_cause = root,
          .failures = {root}};
}

SummaryOptions OnNode(const std::string& node) {
  return {.program = "train.py", .this_node = node, .time_zone = absl::UTCTimeZone()};
}

TEST(FormatExitSummary, IsEmptyForSuccess) {
  EXPECT_EQ(FormatExitSummary(JobOutcome{}, OnNode("node1")), "");
}

TEST(FormatExitSummary, NamesTheRootCauseInTorchrunsLayout) {
  WorkerFailure root = Rank5();
  root.error_file = "/logs/error.json";
  root.message = "ValueError: boom";
  EXPECT_EQ(FormatExitSummary(Failed(root), OnNode("node2")),
            R"(============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01T00:00:00.123+00:00
  host      : node2
  rank      : 5 (local_rank: 1, node_rank: 1)
  exitcode  : 7 (pid: 4242)
  error_file: /logs/error.json
  traceback : ValueError: boom
------------------------------------------------------------
Other failures: none
============================================================
exit code 7: rank 5 on node2 failed and no restarts are left
)");
}

TEST(FormatExitSummary, SaysBecauseOfWhomAnotherNodeStopped) {
  EXPECT_THAT(FormatExitSummary(Failed(Rank5()), OnNode("node1")),
              HasSubstr("\nnode1 stopped because rank 5 on node2 exited with code 7\n"));
  EXPECT_THAT(FormatExitSummary(Failed(Rank5()), OnNode("node2")),
              Not(HasSubstr("stopped because")));
}

TEST(FormatExitSummary, PutsSignalsInWords) {
  WorkerFailure root = Rank5();
  root.signal = SIGKILL;
  const std::string text = FormatExitSummary(Failed(root), OnNode("node2"));
  EXPECT_THAT(text, HasSubstr("  exitcode  : -9 (pid: 4242)\n  signal    : 9, SIGKILL (killed)\n"));
  EXPECT_THAT(text, Not(HasSubstr("out-of-memory")));
  EXPECT_THAT(text, HasSubstr("exit code 137: "));
}

TEST(FormatExitSummary, SaysWhenMemoryProbablyRanOut) {
  WorkerFailure root = Rank5();
  root.signal = SIGKILL;
  root.probably_out_of_memory = true;
  EXPECT_THAT(FormatExitSummary(Failed(root), OnNode("node2")),
              HasSubstr("probably killed by the kernel's out-of-memory killer"));
  root.signal = 0;
  EXPECT_THAT(FormatExitSummary(Failed(root), OnNode("node2")),
              HasSubstr("cause     : probably memory: the kernel's out-of-memory killer has killed "
                        "a process of this node"));
  EXPECT_THAT(FormatExitSummary(Failed(root), OnNode("node1")),
              HasSubstr(", after the kernel's out-of-memory killer had killed a process of its"));
}

TEST(FormatExitSummary, NamesWhoseCallHasEndedTheFirstThatFailed) {
  WorkerFailure root = Rank5();
  root.signal = SIGABRT;
  root.ended_by = "rank 3 called A where ranks 0-2 called B";
  const std::string text = FormatExitSummary(Failed(root), OnNode("node2"));
  EXPECT_THAT(text, HasSubstr("Root Cause:\n  rank 3 called A where ranks 0-2 called B\n"));
  EXPECT_THAT(text, HasSubstr("First observed failure, which is not at fault:\n[0]:\n"));
  EXPECT_THAT(FormatExitSummary(Failed(root), OnNode("node1")),
              HasSubstr("was ended by SIGABRT: rank 3 called A where ranks 0-2 called B\n"));
}

TEST(FormatExitSummary, ShowsAllOfATracebackHoweverLong) {
  WorkerFailure root = Rank5();
  root.error_file = "/e";
  root.message = "Traceback:\n  File \"t.py\"\n\nValueError: " + std::string(500, 'x') + "\n";
  EXPECT_THAT(FormatExitSummary(Failed(root), OnNode("node2")),
              HasSubstr("  traceback : \n    Traceback:\n      File \"t.py\"\n\n    ValueError: " +
                        std::string(500, 'x') + "\n"));
}

TEST(FormatExitSummary, ShowsTheLastOutputWhenThereIsNoErrorFile) {
  WorkerFailure root = Rank5();
  root.last_output = "step 1\r\nCUDA error\n";
  EXPECT_THAT(
      FormatExitSummary(Failed(root), OnNode("node2")),
      HasSubstr(
          "  error_file: <N/A>\n  output    : \n    (last lines)\n    step 1\n    CUDA error\n"));
}

TEST(FormatExitSummary, ShowsTheLastLineAloneOfWhatTheConsoleHasShown) {
  WorkerFailure root = Rank5();
  root.last_output = "Traceback:\n  File \"t.py\"\nValueError: NaN\n\n";
  SummaryOptions options = OnNode("node2");
  options.was_shown = [](const WorkerFailure& failure) { return failure.node_name == "node2"; };
  const std::string text = FormatExitSummary(Failed(root), options);
  EXPECT_THAT(text, HasSubstr("  output    : shown above, ending with: ValueError: NaN\n"));
  EXPECT_THAT(text, Not(HasSubstr("Traceback")));
  root.error_file = "/e";
  root.message = "Traceback:\nKeyError: 'x'";
  EXPECT_THAT(FormatExitSummary(Failed(root), options), HasSubstr("ending with: KeyError: 'x'\n"));
  root.node_name = "node1";
  EXPECT_THAT(FormatExitSummary(Failed(root), options), HasSubstr("Traceback"));
}

// Both streams in one place: what was buffered follows the traceback.
TEST(FormatExitSummary, NamesTheExceptionThatOtherLinesFollow) {
  WorkerFailure root = Rank5();
  root.last_output = "Traceback (most recent call last):\n  f()\nValueError: NaN\nstep 9\n";
  SummaryOptions options = OnNode("node2");
  options.was_shown = [](const WorkerFailure&) { return true; };
  EXPECT_THAT(FormatExitSummary(Failed(root), options),
              HasSubstr("  exception : ValueError: NaN\n"
                        "  output    : shown above, ending with: step 9\n"));
}

TEST(FormatExitSummary, SaysThatAProgramNeverStarted) {
  WorkerFailure root = Rank5();
  root.start_failed = true;
  root.exit_code = 127;
  root.message = "exec /x: No such file or directory";
  const std::string text = FormatExitSummary(Failed(root), OnNode("node1"));
  EXPECT_THAT(text, HasSubstr("  exitcode  : 127 (never started)\n"));
  EXPECT_THAT(text, HasSubstr("  message   : exec /x: No such file or directory\n"));
  EXPECT_THAT(text, HasSubstr("rank 5 on node2 could not be started"));
}

TEST(FormatExitSummary, NamesThePythonWhereAnotherMayHaveBeenMeant) {
  WorkerFailure root = Rank5();
  SummaryOptions options = OnNode("node2");
  options.python = "/usr/bin/python3 (the first on PATH)";
  EXPECT_THAT(FormatExitSummary(Failed(root), options), Not(HasSubstr("python")));
  root.last_output = "ModuleNotFoundError: No module named 'torch'";
  EXPECT_THAT(FormatExitSummary(Failed(root), options),
              HasSubstr("python    : /usr/bin/python3 (the first on PATH); PYTHON_EXEC chooses"));
  options.this_node = "node1";
  EXPECT_THAT(FormatExitSummary(Failed(root), options), Not(HasSubstr("PYTHON_EXEC")))
      << "node2 may have another";
}

TEST(FormatExitSummary, ListsOtherFailuresAndCountsTheRest) {
  std::vector<WorkerFailure> failures = {Rank5()};
  for (int i = 0; i < 5; ++i) {
    WorkerFailure& other = failures.emplace_back(Rank5());
    other.rank = Rank(10 + i);
    other.pid = 100 + i;
  }
  JobOutcome outcome = Failed(Rank5());
  outcome.failures = std::move(failures);
  SummaryOptions options = OnNode("node2");
  options.max_failures = 2;
  const std::string text = FormatExitSummary(outcome, options);
  EXPECT_THAT(text, HasSubstr("Other failures:\n[1]:\n"));
  EXPECT_THAT(text, HasSubstr("rank      : 11 "));
  EXPECT_THAT(text, Not(HasSubstr("rank      : 12 ")));
  EXPECT_THAT(text, HasSubstr("\nand 3 more\n"));
}

TEST(FormatExitSummary, GivesReasonAndCodeWhenNoWorkerIsToBlame) {
  EXPECT_EQ(FormatExitSummary({.exit_code = 4, .reason = "waited 600s for node ranks 2, 3"},
                              OnNode("node1")),
            "train.py did not finish\nexit code 4: waited 600s for node ranks 2, 3\n");
}

}  // namespace
}  // namespace muster::launcher

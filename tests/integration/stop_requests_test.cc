// `muster stop`, `muster drain` and SIGTERM to one of several nodes, with real agents and workers:
// every rank leaves after the same step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(90);

class StopRequests : public SeveralNodes {
 protected:
  // Ranks that step together for ever, by files of their attempt; `before` runs first.
  std::string Stepping(const std::string& before = "") const {
    return ShellScript("train.sh", absl::StrCat(before, "exec ", Built("stepping_rank"), "\n"));
  }
  // The first one hosts the rendezvous.
  std::vector<Subprocess> StartNodes(int count, const std::string& nodes, const Arguments& rest) {
    std::vector<Subprocess> agents;
    for (int node = 1; node <= count; ++node) {
      agents.push_back(StartElastic(node, nodes, rest));
      if (node > 1) continue;
      EXPECT_TRUE(agents.back().WaitForOutput("hosting", kLong));
    }
    return agents;
  }
  bool AllHaveBegun(int attempt, int step, int ranks) const {
    return WaitUntil(
        [&] {
          for (int rank = 0; rank < ranks; ++rank) {
            if (!FileExists(Out(absl::StrCat(attempt, "/step.", step, ".", rank)))) return false;
          }
          return true;
        },
        kLong);
  }
  SubprocessResult Ask(const Arguments& command, const Arguments& rest = {}) const {
    return Run(command + Arguments{"--rdzv_endpoint=" + endpoint(), "--rdzv_id=elastic"} + rest);
  }
  // The step after which a rank of `agent` says that it has left; -1: it says nothing.
  static int StepLeft(const SubprocessResult& agent) {
    constexpr char kLeft[] = "left after step ";
    const size_t at = agent.out.find(kLeft);
    return at == std::string::npos ? -1 : std::atoi(agent.out.c_str() + at + sizeof(kLeft) - 1);
  }
  static std::string SaidSoFar(std::vector<Subprocess>& agents) {
    std::string text;
    for (Subprocess& agent : agents) {
      absl::StrAppend(&text, ToString(agent.Wait(absl::ZeroDuration())), "\n");
    }
    return text;
  }
  void ExpectThatNobodyBegan(int attempt, int step, int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_FALSE(FileExists(Out(absl::StrCat(attempt, "/step.", step, ".", rank))))
          << "rank " << rank << " went past the step";
    }
  }
};

TEST_F(StopRequests, AJobThatIsStoppedEndsWithZeroAfterOneStep) {
  std::vector<Subprocess> agents =
      StartNodes(2, "2", {"--shutdown_timeout=600", "--nproc_per_node=2", Stepping()});
  ASSERT_TRUE(AllHaveBegun(0, 3, 4));
  const SubprocessResult asked = Ask({"stop"}, {"--reason=maintenance"});
  EXPECT_THAT(asked, ExitsWith(0));
  EXPECT_THAT(asked.out, HasSubstr("the job stops: every rank leaves after the same step"));
  std::vector<int> steps;
  for (Subprocess& agent : agents) {
    const SubprocessResult result = agent.Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err,
                HasSubstr("stopped on request: maintenance; every rank left after step"));
    EXPECT_THAT(result.out, HasSubstr(": stopped on request: maintenance"));
    steps.push_back(StepLeft(result));
  }
  EXPECT_GE(steps[0], 3);
  EXPECT_EQ(steps[0], steps[1]);
  ExpectThatNobodyBegan(0, steps[0] + 1, 4);
}

TEST_F(StopRequests, ADrainedNodeEndsWellAndTheOthersGoOn) {
  std::vector<Subprocess> agents = StartNodes(3, "2:3", {"--shutdown_timeout=600", Stepping()});
  ASSERT_TRUE(AllHaveBegun(0, 3, 3));
  const SubprocessResult asked = Ask({"drain"}, {"--reason=a fan", AddressOf(3)});
  EXPECT_THAT(asked, ExitsWith(0));
  EXPECT_THAT(asked.out, HasSubstr("is drained"));
  const SubprocessResult drained = agents[2].Wait(kLong);
  EXPECT_THAT(drained, ExitsWith(0));
  EXPECT_THAT(drained.err, HasSubstr("was drained on request: a fan"));
  ASSERT_TRUE(AllHaveBegun(1, 3, 2)) << "the others have begun another round";
  ExpectThatNobodyBegan(0, StepLeft(drained) + 1, 3);
  EXPECT_THAT(Ask({"stop"}), ExitsWith(0));
  for (const int node : {0, 1}) {
    const SubprocessResult result = agents[node].Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_EQ(StepLeft(result), StepLeft(drained)) << "in the first round, all of them";
  }
}

TEST_F(StopRequests, ANodeThatIsToldToEndLeavesAfterOneStepAndTheOtherGoesOn) {
  std::vector<Subprocess> agents = StartNodes(2, "1:2", {"--shutdown_timeout=600", Stepping()});
  ASSERT_TRUE(AllHaveBegun(0, 3, 2));
  agents[1].Signal(SIGTERM);
  const SubprocessResult left = agents[1].Wait(kLong);
  EXPECT_THAT(left, ExitsWith(143));
  EXPECT_GE(StepLeft(left), 3);
  ASSERT_TRUE(AllHaveBegun(1, 3, 1));
  ExpectThatNobodyBegan(0, StepLeft(left) + 1, 2);
  EXPECT_THAT(Ask({"stop"}), ExitsWith(0));
  const SubprocessResult stayed = agents[0].Wait(kLong);
  EXPECT_THAT(stayed, ExitsWith(0));
  EXPECT_EQ(StepLeft(stayed), StepLeft(left));
}

// The signal comes as Slurm's --signal=USR1@120 sends it, here to one node alone.
TEST_F(StopRequests, AUserSignalThatIsToBeHandledStopsAllNodesAfterOneStep) {
  std::vector<Subprocess> agents = StartNodes(
      2, "2", {"--shutdown_timeout=600", "--signals_to_handle=SIGTERM,SIGUSR1", Stepping()});
  ASSERT_TRUE(AllHaveBegun(0, 3, 2));
  agents[1].Signal(SIGUSR1);
  const SubprocessResult first = agents[0].Wait(kLong), second = agents[1].Wait(kLong);
  EXPECT_THAT(first, ExitsWith(128 + SIGUSR1));
  EXPECT_THAT(second, ExitsWith(128 + SIGUSR1));
  EXPECT_GE(StepLeft(first), 3);
  EXPECT_EQ(StepLeft(first), StepLeft(second));
  ExpectThatNobodyBegan(0, StepLeft(first) + 1, 2);
}

TEST_F(StopRequests, AStopThatIsOpenOutlivesTheServer) {
  const auto start_daemon = [&] {
    Subprocess daemon = StartProgram(
        {MusterdBinary(), "--listen=" + endpoint(), "--state_dir=" + directory() + "/state"});
    EXPECT_TRUE(daemon.WaitForOutput("listening", kLong));
    return daemon;
  };
  Subprocess daemon = start_daemon();
  // Rank 1 asks nothing before it may go on, and rank 0 waits for it in its first step.
  const std::string script =
      Stepping("while [ $RANK = 1 ] && [ ! -e $OUT/go ]; do sleep 0.1; done\n");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartElastic(node, "2", {"--shutdown_timeout=600", script}));
  }
  ASSERT_TRUE(AllHaveBegun(0, 0, 1)) << SaidSoFar(agents);
  EXPECT_THAT(Ask({"stop"}, {"--reason=maintenance"}), ExitsWith(0));
  for (Subprocess& agent : agents) ASSERT_TRUE(agent.WaitForOutput("agree on the step", kLong));
  daemon.Signal(SIGKILL);
  ASSERT_TRUE(daemon.Wait().ended);
  for (Subprocess& agent : agents) ASSERT_TRUE(agent.WaitForOutput("workers run on", kLong));
  Subprocess again = start_daemon();
  for (Subprocess& agent : agents) {
    ASSERT_TRUE(agent.WaitForOutput("serves this node again", kLong));
  }
  WriteFile(Out("go"), "");
  std::vector<int> steps;
  for (Subprocess& agent : agents) {
    const SubprocessResult result = agent.Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr("stopped on request: maintenance"));
    steps.push_back(StepLeft(result));
  }
  EXPECT_EQ(steps[0], steps[1]);
  ExpectThatNobodyBegan(0, steps[0] + 1, 2);
  again.Signal(SIGTERM);
  EXPECT_TRUE(again.Wait().ended);
}

TEST_F(StopRequests, WorkersThatDoNotAskAreSignalledAndTheJobEndsWithZero) {
  const std::string script =
      ShellScript("train.sh", "touch $OUT/ready.$RANK; while :; do sleep 0.1; done");
  std::vector<Subprocess> agents = StartNodes(2, "2", {"--shutdown_timeout=2", script});
  ASSERT_TRUE(WaitForOut("ready.0") && WaitForOut("ready.1"));
  EXPECT_THAT(Ask({"stop"}), ExitsWith(0));
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

TEST_F(StopRequests, NowSignalsThemAtOnce) {
  const std::string script =
      ShellScript("train.sh", "touch $OUT/ready.$RANK; while :; do sleep 0.1; done");
  std::vector<Subprocess> agents = StartNodes(2, "2", {"--shutdown_timeout=600", script});
  ASSERT_TRUE(WaitForOut("ready.0") && WaitForOut("ready.1"));
  const SubprocessResult asked = Ask({"stop"}, {"--now"});
  EXPECT_THAT(asked, ExitsWith(0));
  EXPECT_THAT(asked.out, HasSubstr("signalled now"));
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

// The job is found as `muster status` finds it: the agent here knows the way.
TEST_F(StopRequests, AJobThatHasAnAgentHereNeedsNoEndpoint) {
  std::vector<Subprocess> agents = StartNodes(2, "1:2", {"--shutdown_timeout=600", Stepping()});
  ASSERT_TRUE(AllHaveBegun(0, 3, 2));
  const SubprocessResult drained = Run({"drain", AddressOf(2)});
  EXPECT_THAT(drained, ExitsWith(0));
  EXPECT_THAT(agents[1].Wait(kLong), ExitsWith(0));
  ASSERT_TRUE(AllHaveBegun(1, 3, 1));
  const SubprocessResult other = Run({"stop", "other"});
  EXPECT_THAT(other, ExitsWith(1));
  EXPECT_THAT(other.err, HasSubstr("no job 'other' of yours runs on this node (elastic does)"));
  EXPECT_THAT(Run({"stop", "elastic"}), ExitsWith(0));
  EXPECT_THAT(agents[0].Wait(kLong), ExitsWith(0));
}

TEST_F(StopRequests, AJobOfOneNodeIsNamedWithWhatEndsIt) {
  Subprocess job = Start({"run", "--rdzv_id=here", ShellScript("train.sh", "exec sleep 1000")});
  const std::string way = absl::StrCat("`kill ", job.pid(), "` (job here)");
  SubprocessResult asked;
  EXPECT_TRUE(WaitUntil([&] {
    asked = Run({"stop", "here"});
    return asked.err.find(way) != std::string::npos;
  })) << ToString(asked);
  EXPECT_THAT(asked, ExitsWith(2));
  EXPECT_THAT(asked.err, HasSubstr("--rdzv_endpoint is missing"));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
}

TEST_F(StopRequests, WhatCannotBeDoneIsSaidAndChangesNothing) {
  const SubprocessResult nobody = Ask({"stop"}, {"--timeout=1"});
  EXPECT_THAT(nobody, ExitsWith(1));
  EXPECT_THAT(nobody.err, HasSubstr("did not answer within 1s"));
  EXPECT_THAT(Run({"stop"}), ExitsWith(1));  // no job runs here
  const std::string script =
      ShellScript("train.sh", "touch $OUT/ready.$RANK; while [ ! -e $OUT/go ]; do sleep 0.1; done");
  std::vector<Subprocess> agents = StartNodes(2, "1:2", {script});
  ASSERT_TRUE(WaitForOut("ready.0") && WaitForOut("ready.1"));
  const SubprocessResult unknown = Ask({"drain"}, {"127.0.0.22"});
  EXPECT_THAT(unknown, ExitsWith(1));
  EXPECT_THAT(unknown.err, HasSubstr("the job has no node '127.0.0.22'"));
  const SubprocessResult host = Ask({"drain"}, {AddressOf(1)});
  EXPECT_THAT(host, ExitsWith(1));
  EXPECT_THAT(host.err, HasSubstr("hosts the rendezvous"));
  const SubprocessResult other = Run({"stop", "--rdzv_endpoint=" + endpoint(), "--rdzv_id=elastc"});
  EXPECT_THAT(other, ExitsWith(2));
  EXPECT_THAT(other.err, HasSubstr("this server serves job 'elastic'"));
  WriteFile(Out("go"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing

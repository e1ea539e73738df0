// The hang watch over several nodes: a rank of another node is named on every console; who only
// takes long, or is not heard, is left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNotice[] = "rank 1 has not called all_reduce #5 (group world, 4096 bytes f32)";

// A hang takes its time; more of it beside other tests on a small machine.
constexpr absl::Duration kPatienceWithHangs = absl::Minutes(2);

class HangWatchOverNodes : public SeveralNodes {
 protected:
  // Rank r lives on node r.
  std::vector<Subprocess> StartNodes(int num_nodes, const std::string& how, const Arguments& more) {
    std::vector<Subprocess> nodes;
    for (int node = 0; node < num_nodes; ++node) {
      nodes.push_back(StartNode(node, num_nodes, how, more));
      if (node > 0) continue;
      EXPECT_TRUE(nodes.front().WaitForOutput("hosting the rendezvous", kPatienceWithHangs));
    }
    return nodes;
  }
  Subprocess StartNode(int node, int num_nodes, const std::string& how, const Arguments& more) {
    return StartStatic(
        node, num_nodes,
        Arguments{"--log_dir=" + LogsOf(node)} + more + Arguments{Built("hanging_rank"), how});
  }
  std::string LogsOf(int node) const { return Out(absl::StrCat("logs", node)); }

  // The report of the job's only hang, as `node` has written it; waits until it is there.
  nlohmann::json Report(int node, const std::string& last_milestone) const {
    nlohmann::json report;
    WaitUntil([&] {
      for (const std::string& file : FilesBelow(LogsOf(node))) {
        if (!absl::EndsWith(file, "hang_0_1.json")) continue;
        report = nlohmann::json::parse(ReadFile(LogsOf(node) + "/" + file), nullptr,
                                       /*allow_exceptions=*/false);
      }
      return report.is_object() && report["timeline_ms"].contains(last_milestone);
    });
    return report;
  }
};

TEST_F(HangWatchOverNodes, NamesARankOfAnotherNodeOnEveryConsoleAndRestartsTheJob) {
  std::vector<Subprocess> nodes =
      StartNodes(3, "sleeps", {"--max_restarts=1", "--hang_timeout=20"});
  for (int node = 0; node < 3; ++node) {
    const SubprocessResult result = nodes[node].Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(absl::StrCat("warning: ", kNotice, "; ranks 0 and 2 wait")),
                      HasSubstr(absl::StrCat("hang: ", kNotice)),
                      HasSubstr(absl::StrCat("rank 1 on ", AddressOf(2), " (pid")),
                      HasSubstr("is between steps, before step 5, asleep"),
                      HasSubstr("SleepInTheDataLoader"),
                      HasSubstr("nothing has moved for 20 s (--hang_timeout)")));
    const nlohmann::json report = Report(node, "first_step");
    EXPECT_EQ(report["verdict"]["culprits"].dump(), "[1]");
    EXPECT_EQ(report["verdict"]["waiting"].dump(), "[0,2]");
    EXPECT_EQ(report["verdict"]["cause"], "data_loader");
    EXPECT_EQ(report["verdict"]["operation"]["group"], "world");
    EXPECT_EQ(report["ranks"][0]["node"], AddressOf(2));
    EXPECT_EQ(report["detected_by"][0]["silence_on"], "progress_board");
    EXPECT_GE(report["timeline_ms"]["decided"], 1) << "20 s of silence, of which 5 s detect it";
    EXPECT_TRUE(report["timeline_ms"].contains("reformed"));
    EXPECT_THAT(report["stacks"].dump(), HasSubstr("SleepInTheDataLoader"));
  }
}

TEST_F(HangWatchOverNodes, DoesNotAwaitTheTimeoutForARankThatIsStopped) {
  std::vector<Subprocess> nodes = StartNodes(2, "stops", {"--max_restarts=1"});
  for (Subprocess& node : nodes) {
    const SubprocessResult result = node.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, HasSubstr("hang: rank 1 is stopped by a signal and cannot take part in "
                                      "all_reduce #5"));
  }
}

TEST_F(HangWatchOverNodes, OnlySaysItWhereItMayNotAct) {
  std::vector<Subprocess> nodes = StartNodes(2, "spins", {"--hang_timeout=12"});
  for (Subprocess& node : nodes) {
    ASSERT_TRUE(node.WaitForOutput("this is only reported (--watch=report)", kPatienceWithHangs));
  }
  for (Subprocess& node : nodes) node.Signal(SIGINT);
  for (Subprocess& node : nodes) {
    EXPECT_THAT(node.Wait(kPatienceWithHangs).err,
                AllOf(HasSubstr(kNotice), HasSubstr("computing"), HasSubstr("SpinForEver")));
  }
}

TEST_F(HangWatchOverNodes, NamesARankThatHasNotEndedOnEveryConsole) {
  const std::string script = ShellScript("end.sh", "[ $RANK = 1 ] && exec sleep 1000\nexit 0\n");
  std::vector<Subprocess> nodes;
  for (int node = 0; node < 2; ++node) {
    nodes.push_back(StartStatic(node, 2, {"--no_python", script}));
  }
  for (Subprocess& node : nodes) {
    EXPECT_TRUE(node.WaitForOutput("rank 0 has ended; rank 1 has not: pid ", kPatienceWithHangs));
  }
  for (Subprocess& node : nodes) node.Signal(SIGTERM);
  for (Subprocess& node : nodes) EXPECT_TRUE(node.Wait(kPatienceWithHangs).ended);
}

TEST_F(HangWatchOverNodes, NamesASlowRankOfAnotherNode) {
  std::vector<Subprocess> nodes = StartNodes(2, "slow", {"--max_restarts=1"});
  for (Subprocess& node : nodes) {
    EXPECT_TRUE(node.WaitForOutput("rank 1 is slow, not hung", kPatienceWithHangs));
  }
  for (Subprocess& node : nodes) node.Signal(SIGINT);
  for (Subprocess& node : nodes) {
    EXPECT_THAT(node.Wait(kPatienceWithHangs).err, Not(HasSubstr("hang:")));
  }
}

TEST_F(HangWatchOverNodes, SaysWhatItCannotSeeWhereANodeIsNotWatched) {
  Subprocess seen = StartNode(0, 2, "sleeps", {"--hang_timeout=12", "--watch=restart"});
  Subprocess unseen = StartNode(1, 2, "sleeps", {"--hang_timeout=12", "--watch=off"});
  ASSERT_TRUE(seen.WaitForOutput("nothing is known of rank 1 on 127.0.0.2 (its agent takes no part",
                                 kPatienceWithHangs));
  for (Subprocess* node : {&seen, &unseen}) node->Signal(SIGINT);
  for (Subprocess* node : {&seen, &unseen}) {
    EXPECT_THAT(node->Wait(kPatienceWithHangs).err, Not(HasSubstr("hang:")));
  }
}

// An agent that is stopped is not heard, and its rank is nobody's to judge meanwhile.
TEST_F(HangWatchOverNodes, JudgesNobodyWhileAnAgentIsStopped) {
  std::vector<Subprocess> nodes =
      StartNodes(2, "sleeps", {"--max_restarts=1", "--hang_timeout=30", "--rdzv_conf=lease=300"});
  ASSERT_TRUE(nodes[0].WaitForOutput(kNotice, kPatienceWithHangs));
  nodes[1].Signal(SIGSTOP);
  const bool is_late = nodes[0].WaitForOutput("hang:", absl::Seconds(40));
  nodes[1].Signal(SIGCONT);
  EXPECT_FALSE(is_late);
  for (Subprocess& node : nodes) {
    const SubprocessResult result = node.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, HasSubstr(absl::StrCat("hang: ", kNotice)));
  }
}

// Processes of a node, those that started the others first.
std::vector<pid_t> ProcessesOf(pid_t agent) {
  std::vector<pid_t> all = {agent};
  for (size_t i = 0; i < all.size(); ++i) {
    for (const pid_t child : ChildrenOf(all[i])) all.push_back(child);
  }
  return all;
}

constexpr char kOutOfSight[] =
    "for ranks of which nothing is known here; nothing is known of rank 1";

TEST_F(HangWatchOverNodes, JudgesNobodyWhileAWholeNodeIsSuspended) {
  std::vector<Subprocess> nodes =
      StartNodes(2, "slow", {"--max_restarts=1", "--rdzv_conf=lease=300"});
  ASSERT_TRUE(nodes[0].WaitForOutput("stepping", kPatienceWithHangs));
  std::vector<pid_t> suspended = ProcessesOf(nodes[1].pid());
  for (const pid_t pid : suspended) ::kill(pid, SIGSTOP);
  EXPECT_TRUE(nodes[0].WaitForOutput(kOutOfSight, kPatienceWithHangs));
  std::reverse(suspended.begin(), suspended.end());
  for (const pid_t pid : suspended) ::kill(pid, SIGCONT);
  EXPECT_TRUE(nodes[0].WaitForOutput("it goes on", kPatienceWithHangs));
  for (Subprocess& node : nodes) node.Signal(SIGINT);
  for (Subprocess& node : nodes) {
    EXPECT_THAT(node.Wait(kPatienceWithHangs).err, Not(HasSubstr("hang:")));
  }
}

// Rank 1 is stopped by SIGSTOP. There are no restarts to use.
TEST_F(HangWatchOverNodes, GoesOnWithASpareInThePlaceOfTheNodeAtFault) {
  const std::string script = ShellScript(
      "train.sh",
      absl::StrCat("touch $OUT/ready.$RANK\nwhile [ ! -e $OUT/go ]; do sleep 0.1; done\nexec ",
                   Built("hanging_rank"), " stops\n"));
  const auto start = [&](int node) {
    return StartElastic(
        node, "2",
        {"--watch=replace", "--shutdown_timeout=5", "--log_dir=" + LogsOf(node), script});
  };
  std::vector<Subprocess> nodes;
  nodes.push_back(start(1));
  ASSERT_TRUE(nodes[0].WaitForOutput("hosting", kPatienceWithHangs));
  nodes.push_back(start(2));
  ASSERT_TRUE(WaitForOut("ready.0") && WaitForOut("ready.1"));
  nodes.push_back(start(3));
  ASSERT_TRUE(nodes[2].WaitForOutput("is a spare", kPatienceWithHangs));
  WriteFile(Out("go"), "");
  for (const int node : {1, 2, 3}) {
    const SubprocessResult result = nodes[node - 1].Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    if (node == 3) continue;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("hang: rank 1 is stopped by a signal"),
                      HasSubstr("127.0.0.2 leaves the job, which goes on without it"),
                      HasSubstr("127.0.0.2 was replaced: hang: rank 1 is stopped by a signal")));
    EXPECT_EQ(Report(node, node == 1 ? "first_step" : "reported")["verdict"]["cause"], "stopped");
  }
}

// What was learned of silences is known to the agents, and so to a server that knows nothing.
TEST_F(HangWatchOverNodes, AServerWithoutStateThatIsKilledKnowsAgainWhatWasLearned) {
  const auto start_daemon = [&] {
    Subprocess daemon = StartProgram({MusterdBinary(), "--listen=" + endpoint()});
    EXPECT_TRUE(daemon.WaitForOutput("listening", kPatienceWithHangs));
    return daemon;
  };
  Subprocess daemon = start_daemon();
  std::vector<Subprocess> nodes;
  for (const int node : {1, 2}) {
    nodes.push_back(StartElastic(node, "2",
                                 {"--max_restarts=1", "--hang_timeout=20", "--rdzv_conf=is_host=0",
                                  Built("hanging_rank"), "learns"}));
  }
  const auto says_anywhere = [&](const std::string& text) {
    return WaitUntil(
        [&] {
          return std::any_of(nodes.begin(), nodes.end(), [&](Subprocess& node) {
            return node.WaitForOutput(text, absl::Milliseconds(100));
          });
        },
        kPatienceWithHangs);
  };
  ASSERT_TRUE(says_anywhere("it went on")) << "13 s of silence have ended well";
  daemon.Signal(SIGKILL);
  ASSERT_TRUE(daemon.Wait().ended);
  for (Subprocess& node : nodes) {
    ASSERT_TRUE(node.WaitForOutput("workers run on", kPatienceWithHangs));
  }
  Subprocess again = start_daemon();
  for (Subprocess& node : nodes) {
    ASSERT_TRUE(node.WaitForOutput("its workers run on, for", kPatienceWithHangs));
  }
  // A worker that fails ends the round of which there is no record.
  for (const pid_t pid : ProcessesOf(nodes[0].pid())) {
    if (NameOf(pid) == "hanging_rank") ::kill(pid, SIGKILL);
  }
  for (Subprocess& node : nodes) {
    const SubprocessResult result = node.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, Not(HasSubstr("hang:"))) << "30 s are longer than --hang_timeout";
  }
  again.Signal(SIGTERM);
  EXPECT_TRUE(again.Wait().ended);
}

// The limits are those that users have.
class LongOverNodes : public HangWatchOverNodes,
                      public ::testing::WithParamInterface<const char*> {};

TEST_P(LongOverNodes, IsLeftAlone) {
  std::vector<Subprocess> nodes = StartNodes(2, GetParam(), {"--max_restarts=1"});
  for (Subprocess& node : nodes) {
    const SubprocessResult result = node.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Hangs, LongOverNodes,
                         ::testing::Values("long_save", "long_first_step", "computes"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::testing

// The hang watch where the network between two nodes is cut, and both still reach the rendezvous:
// no rank is at fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/integration/nodes_in_namespaces.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatienceWithHangs = absl::Minutes(4);
constexpr char kInside[] =
    "(group world, 4096 bytes f32) has been called by all of its ranks and does not end; ranks 0 "
    "and 1 "
    "wait";

// Two nodes with a rank each, which step for ever.
class HangWatchOfACutNetwork : public NodesInNamespaces {
 protected:
  void StartSteps(const Arguments& more) {
    StartMusterd();
    for (int node = 1; node <= 2; ++node) {
      // Ranks that see each other's processes share memory. One that is the first process of its
      // own namespace hears of no signal but SIGKILL.
      Arguments program = {Built("hanging_rank"), "slow"};
      if (node == 2) {
        program = Arguments{"/usr/bin/unshare", "--pid", "--fork", "--kill-child"} + program;
      }
      agents_.push_back(StartProgram(network_->On(
          node, Arguments{MusterBinary(), "run", "--nnodes=2", "--rdzv_backend=c10d",
                          "--rdzv_id=cut", "--rdzv_endpoint=" + EndpointOn(0),
                          absl::StrCat("--local_addr=", network_->AddressOf(node)),
                          absl::StrCat("--log_dir=", Out("logs"), node), "--shutdown_timeout=1"} +
                    more + program)));
    }
    ASSERT_TRUE(WaitUntil([&] { return SaysAnywhere("stepping"); }, kPatienceWithHangs));
  }
  // Rank 0 is on either of them.
  bool SaysAnywhere(const std::string& text) {
    return std::any_of(agents_.begin(), agents_.end(), [&](Subprocess& agent) {
      return agent.WaitForOutput(text, absl::Milliseconds(100));
    });
  }
  void ExpectOnBoth(const std::string& text) {
    for (Subprocess& agent : agents_)
      EXPECT_TRUE(agent.WaitForOutput(text, kPatienceWithHangs)) << text;
  }
};

TEST_F(HangWatchOfACutNetwork, IsSaidToBeOneAndEndsNobody) {
  StartSteps({"--hang_timeout=15"});
  network_->CutBetween(1, 2);
  ExpectOnBoth("this is only reported (--watch=report)");
  for (Subprocess& agent : agents_) agent.Signal(SIGINT);
  for (int node = 1; node <= 2; ++node) {
    const SubprocessResult result = agents_[node - 1].Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(128 + SIGINT));
    EXPECT_THAT(result.err, AllOf(HasSubstr(kInside), HasSubstr("hang: all_reduce #")));
    const std::string logs = absl::StrCat(Out("logs"), node);
    for (const std::string& file : FilesBelow(logs)) {
      if (!absl::EndsWith(file, "hang_0_1.json")) continue;
      const auto report =
          nlohmann::json::parse(ReadFile(absl::StrCat(logs, "/", file)), nullptr, false);
      EXPECT_EQ(report["verdict"]["culprits"].dump(), "[]");
      EXPECT_EQ(report["verdict"]["cause"], "slow_link");
    }
  }
}

TEST_F(HangWatchOfACutNetwork, IsNoHangWhereItIsMendedInTime) {
  StartSteps({"--max_restarts=1"});
  network_->CutBetween(1, 2);
  ExpectOnBoth(kInside);
  network_->HealBetween(1, 2);
  ExpectOnBoth("it goes on");
  for (Subprocess& agent : agents_) agent.Signal(SIGINT);
  for (Subprocess& agent : agents_) {
    const SubprocessResult result = agent.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(128 + SIGINT));
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
  }
}

}  // namespace
}  // namespace muster::testing

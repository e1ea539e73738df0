// Three real nodes, each in a network namespace of its own, and a musterd: nodes that die, are cut
// off or stand still, for less and for more than a lease (6 s).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/node_network.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

constexpr int kPort = 29400;
constexpr absl::Duration kLongEnough = absl::Seconds(60);

class NodeLoss : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!NodeNetwork::IsPossible()) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    network_.emplace(3);
    daemon_.emplace(StartProgram(network_->On(
        0, {MusterdBinary(), absl::StrCat("--listen=", network_->AddressOf(0), ":", kPort)})));
    ASSERT_TRUE(daemon_->WaitForOutput("listening"));
    // Says of which round it is, and works until the test is over.
    script_ = ShellScript("train.sh", R"(
touch $OUT/$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK
while [ ! -e $OUT/done ]; do sleep 0.1; done)");
    for (int node = 1; node <= 3; ++node) agents_.push_back(StartAgent(node));
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(WaitForOut(absl::StrCat("0.3.", rank)));
  }
  void TearDown() override {
    agents_.clear();
    if (daemon_) {
      daemon_->Signal(SIGTERM);
      EXPECT_TRUE(daemon_->Wait().ended);
    }
    network_.reset();
    JobTest::TearDown();
  }

  Subprocess StartAgent(int node) const {
    return StartProgram(network_->On(
        node, Arguments{MusterBinary(), "run", "--nnodes=2:3", "--rdzv_backend=c10d",
                        "--rdzv_id=loss", "--rdzv_conf=last_call_timeout=60",
                        absl::StrCat("--rdzv_endpoint=", network_->AddressOf(0), ":", kPort),
                        absl::StrCat("--local_addr=", network_->AddressOf(node)), script_}));
  }
  void ExpectThatTwoGoOn() {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(
          WaitUntil([&] { return FileExists(Out(absl::StrCat("1.2.", rank))); }, kLongEnough));
    }
  }
  void ExpectThatNothingHappened() {
    absl::SleepFor(absl::Seconds(8));  // a lease later
    EXPECT_FALSE(FileExists(Out("1.2.0")) || FileExists(Out("1.3.0")));
  }
  void ExpectThatAllSucceed(const std::vector<int>& nodes) {
    WriteFile(Out("done"), "");
    for (const int node : nodes) EXPECT_THAT(agents_[node - 1].Wait(kLongEnough), ExitsWith(0));
  }
  void StopFor(int node, absl::Duration time) {
    agents_[node - 1].Signal(SIGSTOP);
    absl::SleepFor(time);
    agents_[node - 1].Signal(SIGCONT);
  }
  // The agent, its guardian and its workers.
  void KillNode(int node) {
    std::vector<pid_t> pids = {agents_[node - 1].pid()};
    for (size_t i = 0; i < pids.size(); ++i) {
      for (const pid_t child : ChildrenOf(pids[i])) pids.push_back(child);
    }
    for (const pid_t pid : pids) kill(pid, SIGKILL);
  }

  std::optional<NodeNetwork> network_;
  std::vector<Subprocess> agents_;

 private:
  std::optional<Subprocess> daemon_;
  std::string script_;
};

TEST_F(NodeLoss, OfANodeThatIsKilledIsFollowedByARoundOfTheOthers) {
  KillNode(3);
  ExpectThatTwoGoOn();
  ExpectThatAllSucceed({1, 2});
}

TEST_F(NodeLoss, OfANodeThatVanishesFromTheNetworkIsFollowedByARoundOfTheOthers) {
  network_->Cut(3);
  ExpectThatTwoGoOn();
  network_->Heal(3);
  ExpectThatAllSucceed({1, 2, 3});
}

TEST_F(NodeLoss, IsNotAPartitionThatHealsWithinTheLease) {
  network_->Cut(3);
  absl::SleepFor(absl::Seconds(3));
  network_->Heal(3);
  ExpectThatNothingHappened();
  ExpectThatAllSucceed({1, 2, 3});
}

TEST_F(NodeLoss, IsNotAnAgentThatStandsStillForThreeSeconds) {
  StopFor(3, absl::Seconds(3));
  ExpectThatNothingHappened();
  ExpectThatAllSucceed({1, 2, 3});
}

TEST_F(NodeLoss, OfAnAgentThatStandsStillForThirtySecondsIsFollowedByARoundOfTheOthers) {
  StopFor(3, absl::Seconds(30));
  ExpectThatTwoGoOn();
  ExpectThatAllSucceed({1, 2, 3});
}

TEST_F(NodeLoss, IsNotAServerThatIsCutOffForLongerThanALease) {
  for (const int node : {1, 2, 3}) network_->Cut(node);
  absl::SleepFor(absl::Seconds(12));
  for (const int node : {1, 2, 3}) network_->Heal(node);
  ExpectThatNothingHappened();
  ExpectThatAllSucceed({1, 2, 3});
}

}  // namespace
}  // namespace muster::testing

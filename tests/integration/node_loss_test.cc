// Three real nodes and a musterd: nodes that die, are cut off or stand still, for less and for more
// than a lease (6 s).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/integration/nodes_in_namespaces.h"
#include "tests/support/process_table.h"

namespace muster::testing {
namespace {

class NodeLoss : public NodesInNamespaces {
 protected:
  void SetUp() override {
    NodesInNamespaces::SetUp();
    if (IsSkipped()) return;
    StartMusterd();
    StartJob();
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
};

TEST_F(NodeLoss, OfANodeThatIsKilledIsFollowedByARoundOfTheOthers) {
  KillNode(3);
  EXPECT_TRUE(AllRun(1, 2));
  ExpectThatAllSucceed({1, 2});
}

TEST_F(NodeLoss, OfANodeThatVanishesFromTheNetworkIsFollowedByARoundOfTheOthers) {
  network_->Cut(3);
  EXPECT_TRUE(AllRun(1, 2));
  network_->Heal(3);
  ExpectThatAllSucceed();
}

TEST_F(NodeLoss, IsNotAPartitionThatHealsWithinTheLease) {
  network_->Cut(3);
  absl::SleepFor(absl::Seconds(3));
  network_->Heal(3);
  ExpectThatNothingHappened();
  ExpectThatAllSucceed();
}

TEST_F(NodeLoss, IsNotAnAgentThatStandsStillForThreeSeconds) {
  StopFor(3, absl::Seconds(3));
  ExpectThatNothingHappened();
  ExpectThatAllSucceed();
}

TEST_F(NodeLoss, OfAnAgentThatStandsStillForThirtySecondsIsFollowedByARoundOfTheOthers) {
  StopFor(3, absl::Seconds(30));
  EXPECT_TRUE(AllRun(1, 2));
  ExpectThatAllSucceed();
}

TEST_F(NodeLoss, IsNotAServerThatIsCutOffForLongerThanALease) {
  for (const int node : {1, 2, 3}) network_->Cut(node);
  absl::SleepFor(absl::Seconds(12));
  for (const int node : {1, 2, 3}) network_->Heal(node);
  ExpectThatNothingHappened();
  ExpectThatAllSucceed();
}

TEST_F(NodeLoss, IsNotAServerThatIsCutOffWhenTheWorkersFinish) {
  for (const int node : {1, 2, 3}) network_->Cut(node);
  WriteFile(Out("done"), "");
  absl::SleepFor(absl::Seconds(5));
  for (const int node : {1, 2, 3}) network_->Heal(node);
  ExpectThatAllSucceed();
}

// The host of the embedded server, whose own agent it always hears.
class HostLoss : public NodesInNamespaces {
 protected:
  void SetUp() override {
    NodesInNamespaces::SetUp();
    if (!IsSkipped()) StartJob(/*host=*/1);
  }
  void CutTheHostFor(absl::Duration time) {
    network_->Cut(1);
    absl::SleepFor(time);
    network_->Heal(1);
  }
};

TEST_F(HostLoss, IsNotAPartitionThatHealsWithinTheLease) {
  CutTheHostFor(absl::Seconds(3));
  ExpectThatNothingHappened();
  ExpectThatAllSucceed();
}

// The first to come back makes two, which is enough for a round; the other joins that, or the next.
TEST_F(HostLoss, ForLongerThanTheLeaseIsFollowedByARoundOfAllOnceItHeals) {
  CutTheHostFor(absl::Seconds(12));
  EXPECT_TRUE(
      WaitUntil([&] { return FileExists(Out("1.3.2")) || FileExists(Out("2.3.2")); }, kLongEnough));
  ExpectThatAllSucceed();
}

// Somebody else on the server's port, while workers run: nothing ends, and the true server finds
// all as it was.
class Impostor : public NodesInNamespaces {
 protected:
  void SetUp() override {
    NodesInNamespaces::SetUp();
    if (IsSkipped()) return;
    StartMusterd();
    StartJob();
    EndServer(SIGKILL);
  }
  void ExpectThatNobodyMindsIt() {
    ExpectThatNothingHappened();
    EndServer(SIGKILL);
    StartMusterd();
    ExpectThatNothingHappened();
    ExpectThatAllSucceed();
  }
};

TEST_F(Impostor, MayBeAMusterdWithAnotherSecret) {
  StartMusterd({{"MUSTER_TOKEN", std::string(64, 'b')}});
  ExpectThatNobodyMindsIt();
}

TEST_F(Impostor, MayBeAWebServer) {
  StartServer({"/usr/bin/python3", "-u", "-m", "http.server", "--bind", network_->AddressOf(0),
               absl::StrCat(kPort)},
              "Serving HTTP");
  ExpectThatNobodyMindsIt();
}

}  // namespace
}  // namespace muster::testing

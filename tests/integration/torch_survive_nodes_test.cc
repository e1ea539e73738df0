// muster.survive on four nodes of one rank: a second node vanishes while the loss of the first is
// being mended. The two others keep their processes. Runs programs/survive_torch.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/torch_survive.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

constexpr int kNodes = 4, kAtStep = 4;

class TorchSurviveNodes : public TorchSurvive {
 protected:
  // Node 1 hosts the rendezvous. Node 2 vanishes as all ranks are in a step.
  void LoseNode2() {
    undisturbed_ = UndisturbedLosses(kNodes, {});
    Hold(kAtStep);
    for (int node = 1; node <= kNodes; ++node) {
      ComeBack(node);
      if (node == 1) {
        ASSERT_TRUE(SaysThatItWaits(*nodes_[node]));
      }
    }
    PidsAt(0, kNodes, kAtStep);
    ASSERT_FALSE(HasFailure());
    Vanish(2);
    LetGo(kAtStep);
  }
  void Vanish(int node) {
    KillWithAllBelow(nodes_.at(node)->pid());
    nodes_[node]->Wait(kLong);
  }
  void ComeBack(int node) {
    nodes_[node] = std::make_unique<Subprocess>(StartElastic(
        node, absl::StrCat(kNodes, ":", kNodes),
        Arguments{"--nproc_per_node=1", "--max_restarts=10"} + Program(), WithTorch()));
  }

  // How many ranks have said "joins" in the round in which most have. The first round is left out.
  int RanksThatJoinAgain() const {
    std::map<int, int> by_round;
    for (const std::string& file : FilesBelow(out())) {
      const std::vector<std::string> parts = absl::StrSplit(file, '.');
      int round = 0;
      if (parts.size() == 3 && parts[0] == "joins" && absl::SimpleAtoi(parts[1], &round)) {
        ++by_round[round];
      }
    }
    int most = 0;
    for (const auto& [round, ranks] : by_round) {
      if (round > 0) most = std::max(most, ranks);
    }
    return most;
  }
  ::testing::AssertionResult JoinAgain(int ranks) const {
    if (WaitUntil([&] { return RanksThatJoinAgain() >= ranks; }, kLong)) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << RanksThatJoinAgain() << " of " << ranks << " join";
  }
  // The process of a node's rank stays in front of joining.
  void HoldFromJoining(int node) const {
    const std::vector<pid_t> below = AllBelow(nodes_.at(node)->pid());
    for (int rank = 0; rank < kNodes; ++rank) {
      const std::string pid = ReadOut(absl::StrCat("joins.0.", rank));
      if (std::find(below.begin(), below.end(), std::stoi(pid)) != below.end()) {
        WriteFile(Out("hold.joins." + pid), "");
      }
    }
  }

  void ExpectThatNodes1And4KeptTheirProcesses() {
    for (auto& [unused, node] : nodes_) EXPECT_THAT(node->Wait(kLong), ExitsWith(0));
    int kept = 0;
    for (int rank = 0; rank < kNodes; ++rank) {
      const size_t steps = Losses(rank).size();
      EXPECT_GE(steps, static_cast<size_t>(kSteps - kAtStep)) << rank;
      kept += steps == static_cast<size_t>(kSteps) ? 1 : 0;
      ExpectLossesOf(undisturbed_, rank);
    }
    EXPECT_EQ(kept, 2);
    ExpectOneEnd(kNodes);
  }

  std::map<int, std::unique_ptr<Subprocess>> nodes_;

 private:
  std::map<int, double> undisturbed_;
};

TEST_F(TorchSurviveNodes, TheSecondVanishesOnceTheOthersAwaitTheNextRound) {
  ASSERT_NO_FATAL_FAILURE(LoseNode2());
  ASSERT_TRUE(WaitUntil(
      [&] {
        int left = 0;
        for (int rank = 0; rank < kNodes; ++rank) {
          left += ReadOut(absl::StrCat("awaits.0.", rank)).empty() ? 0 : 1;
        }
        return left == kNodes - 1;
      },
      kLong));
  Vanish(3);
  ComeBack(2);
  ComeBack(3);
  ExpectThatNodes1And4KeptTheirProcesses();
}

TEST_F(TorchSurviveNodes, TheSecondVanishesAfterTheFirstIsMissed) {
  ASSERT_NO_FATAL_FAILURE(LoseNode2());
  ASSERT_TRUE(nodes_[1]->WaitForOutput(absl::StrCat("lost ", AddressOf(2)), kLong));
  Vanish(3);
  ComeBack(2);
  ComeBack(3);
  ExpectThatNodes1And4KeptTheirProcesses();
}

TEST_F(TorchSurviveNodes, TheSecondVanishesAsTheNextRoundStarts) {
  ASSERT_NO_FATAL_FAILURE(LoseNode2());
  ComeBack(2);
  ASSERT_TRUE(JoinAgain(1));
  Vanish(3);
  ComeBack(3);
  ExpectThatNodes1And4KeptTheirProcesses();
}

// All but its own rank are in the midst of joining, and wait for it.
TEST_F(TorchSurviveNodes, TheSecondVanishesWhileRanksJoin) {
  ASSERT_NO_FATAL_FAILURE(LoseNode2());
  HoldFromJoining(3);
  ComeBack(2);
  ASSERT_TRUE(JoinAgain(kNodes));
  Vanish(3);
  ComeBack(3);
  ExpectThatNodes1And4KeptTheirProcesses();
}

}  // namespace
}  // namespace muster::testing

// Who may publish, when nodes are cut off: at no time two of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/integration/nodes_in_namespaces.h"

namespace muster::testing {
namespace {

struct Line {
  int node = 0;
  int round = 0;
  int step = 0;
};

class CommitFence : public NodesInNamespaces {
 protected:
  void SetUp() override {
    NodesInNamespaces::SetUp();
    if (IsSkipped()) return;
    StartMusterd();
    script_ = MUSTER_COMMIT_PROBE;
    for (int node = 1; node <= 3; ++node) agents_.push_back(StartAgent(node));
    ASSERT_TRUE(WaitUntil([&] { return LinesOf("commits").size() > 3; }, kLongEnough));
  }
  std::vector<Line> LinesOf(const std::string& name) const {
    std::vector<Line> lines;
    if (!FileExists(Out(name))) return lines;
    std::istringstream text(ReadOut(name));
    for (Line line; text >> line.node >> line.round >> line.step;) lines.push_back(line);
    return lines;
  }
  bool SeesRound(const std::string& name, int round) const {
    return WaitUntil([&] { return !LinesOf(name).empty() && LinesOf(name).back().round == round; },
                     kLongEnough);
  }
  // In the order in which they were allowed.
  void ExpectThatRoundsNeverFall() const {
    int newest = 0;
    for (const Line& line : LinesOf("commits")) {
      EXPECT_GE(line.round, newest) << "node " << line.node << " published step " << line.step;
      newest = std::max(newest, line.round);
    }
  }
};

TEST_F(CommitFence, LetsTheNextRoundAlonePublishWhenRankZeroIsCutOff) {
  const int first = LinesOf("commits").front().node;
  network_->Cut(first);
  EXPECT_TRUE(SeesRound("refused", 0)) << "rank 0 runs on, and is told: not now";
  EXPECT_TRUE(SeesRound("commits", 1));
  network_->Heal(first);
  ExpectThatAllSucceed();
  ExpectThatRoundsNeverFall();
}

TEST_F(CommitFence, SaysNotNowWhileTheServerIsCutOffAndGoesOnBehindIt) {
  for (const int node : {1, 2, 3}) network_->Cut(node);
  EXPECT_TRUE(SeesRound("refused", 0));
  const int last = LinesOf("refused").back().step;
  for (const int node : {1, 2, 3}) network_->Heal(node);
  EXPECT_TRUE(WaitUntil([&] { return LinesOf("commits").back().step > last; }, kLongEnough));
  ExpectThatAllSucceed();
  ExpectThatRoundsNeverFall();
}

}  // namespace
}  // namespace muster::testing

// Tests that at no time two nodes may publish, also when nodes are cut off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/nodes_in_namespaces.h"
#include "tests/support/files.h"

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
  }
  void StartCommitting(const std::string& program) {
    script_ = program;
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
  // The lines of "commits" are in the order in which they were allowed.
  void ExpectThatRoundsNeverFall() const {
    int newest = 0;
    for (const Line& line : LinesOf("commits")) {
      EXPECT_GE(line.round, newest) << "node " << line.node << " published step " << line.step;
      newest = std::max(newest, line.round);
    }
  }
};

TEST_F(CommitFence, LetsTheNextRoundAlonePublishWhenRankZeroIsCutOff) {
  StartCommitting(Built("commit_probe"));
  const int first = LinesOf("commits").front().node;
  network_->Cut(first);
  EXPECT_TRUE(SeesRound("refused", 0)) << "rank 0 runs on, and is told: not now";
  EXPECT_TRUE(SeesRound("commits", 1));
  network_->Heal(first);
  ExpectThatAllSucceed();
  ExpectThatRoundsNeverFall();
}

// Programs in C and in Python, which do not end at the SIGTERM that tells them that their round is
// over.
class CommitFenceOf : public CommitFence, public ::testing::WithParamInterface<std::string> {};

TEST_P(CommitFenceOf, TellsNotNowFromNever) {
  StartCommitting(
      ShellScript("program", absl::StrCat("trap '' TERM\nexport JOB_MODULE=", kSourceDirectory,
                                          "/deploy/python\nexec ", GetParam())));
  const int first = LinesOf("commits").front().node;
  network_->Cut(first);
  EXPECT_TRUE(SeesRound("refused", 0)) << "not now";
  EXPECT_TRUE(SeesRound("commits", 1));
  network_->Heal(first);
  EXPECT_TRUE(SeesRound("never", 0));
  ExpectThatAllSucceed();
  ExpectThatRoundsNeverFall();
}

INSTANTIATE_TEST_SUITE_P(
    Programs, CommitFenceOf,
    ::testing::Values(Built("job_probe") + " commit",
                      absl::StrCat("/usr/bin/python3 ", kSourceDirectory,
                                   "/tests/integration/programs/job_probe.py commit")),
    [](const auto& program) { return program.index == 0 ? "C" : "Python"; });

TEST_F(CommitFence, SaysNotNowWhileTheServerIsCutOffAndGoesOnBehindIt) {
  StartCommitting(Built("commit_probe"));
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

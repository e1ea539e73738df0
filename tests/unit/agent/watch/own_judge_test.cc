// A job on one node is judged where it runs, as larger ones are by the server.
#include "agent/watch/own_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Round kRound(2);

class OwnJudgeTest : public ::testing::Test {
 protected:
  void Start(int num_nodes = 1) {
    WatchedRound round{.round = kRound, .num_nodes = num_nodes, .world_size = 2};
    round.boards.resize(2);
    judge_.StartRound(round, now_);
    Summarize();
  }
  // Rank 0 waits for rank 1, and both are silent.
  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + absl::Seconds(1);
      silent_for_ += absl::Seconds(1);
      Summarize();
      judge_.Tick(now_);
    }
  }
  void Summarize() { judge_.Hear(Summary(), now_); }
  hangs::NodeSummary Summary() const {
    return {.round = kRound,
            .hang_timeout = absl::Seconds(30),
            .ends_workers = ends_workers_,
            .silent = hangs::Summarize({{0, hangs::WatchPhase::kStep, silent_for_},
                                        {1, hangs::WatchPhase::kStep, silent_for_}})};
  }

  void Obey(const hangs::AskDetails& ask) {
    hangs::EvidenceBuilder job(2);
    job.Waits(0, job.AddWorld(), hangs::AllReduce(7));
    hangs::NodeDetails details{.question = ask.question, .summary = Summary()};
    details.evidence = job.Build();
    for (hangs::RankEvidence& rank : details.evidence.ranks) {
      rank.pid = 100 + rank.rank;
      rank.silent_for = silent_for_;
      rank.doing = "asleep";
    }
    judge_.Hear(std::move(details), now_);
  }
  void Obey(const hangs::AskStacks& ask) {
    asked_first_ = ask.first;
    judge_.Hear(
        hangs::NodeStacks{ask.question, kRound, {{.rank = 0, .pid = 100}, {.rank = 1, .pid = 101}}},
        now_);
  }
  void Obey(const hangs::SayNotice& say) { notices_.push_back(say); }
  void Obey(const hangs::SayRecovery& say) { recoveries_.push_back(say.text); }
  void Obey(const hangs::SayVerdict& say) { verdicts_.push_back(say); }
  template <typename Order>
  void Obey(const Order&) {}

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  absl::Duration silent_for_;
  bool ends_workers_ = true;
  std::vector<hangs::SayNotice> notices_;
  std::vector<std::string> recoveries_;
  std::vector<hangs::SayVerdict> verdicts_;
  std::vector<int> asked_first_;
  OwnJudge judge_{absl::Seconds(30), [this](const hangs::WatchOrder& order) {
                    std::visit([this](const auto& each) { Obey(each); }, order);
                  }};
};

TEST_F(OwnJudgeTest, GivesNoticeWithinSevenSecondsOfRanksWithoutTheNameOfANode) {
  Start();
  Pass(7);
  ASSERT_THAT(notices_, SizeIs(1));
  EXPECT_EQ(notices_[0].text,
            "rank 1 has not called all_reduce #7 (group world, 4096 bytes f32); rank 0 waits; rank "
            "1 (pid 101) asleep, silent for 6s");
  EXPECT_THAT(notices_[0].named, ElementsAre(1));
  EXPECT_TRUE(judge_.HasIncident());
}

TEST_F(OwnJudgeTest, HasTheRankAtFaultEndedAtTheHardLimit) {
  Start();
  Pass(29);
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(1);
  ASSERT_THAT(verdicts_, SizeIs(1));
  EXPECT_THAT(verdicts_[0].to_end, ElementsAre(1));
  EXPECT_THAT(verdicts_[0].action, HasSubstr("its worker is ended"));
  EXPECT_THAT(asked_first_, ElementsAre(1));
}

TEST_F(OwnJudgeTest, TakesBackWithinASecondWhatWasOnlySaid) {
  ends_workers_ = false;
  Start();
  Pass(33);
  ASSERT_THAT(verdicts_, SizeIs(1));
  EXPECT_THAT(verdicts_[0].to_end, IsEmpty());
  silent_for_ = absl::ZeroDuration();
  Pass(1);
  EXPECT_THAT(recoveries_, ElementsAre(HasSubstr("it goes on: rank 1 has not called")));
}

TEST_F(OwnJudgeTest, HearsNothingWhereTheServerJudges) {
  Start(/*num_nodes=*/2);
  EXPECT_FALSE(judge_.IsJudge());
  Pass(60);
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(OwnJudgeTest, JudgesNobodyWhoIsBeingStopped) {
  Start();
  Pass(20);
  judge_.StopRound();
  Pass(60);
  EXPECT_THAT(verdicts_, IsEmpty());
}

}  // namespace
}  // namespace muster::agent

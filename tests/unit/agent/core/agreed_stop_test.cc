#include "agent/core/agreed_stop.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

class AgreedStopTest : public TurnTest {
 protected:
  AgreedStopTest() { workers_.Begin(TwoWorkers()); }
  bool Take(int64_t step) {
    return stop_.Take({.round = Round(0), .step = step, .reason = "somebody asked"}, turn_);
  }
  void Promise(int local_rank, int64_t floor) {
    workers_.Note(
        WorkerPromised{.round = Round(0), .local_rank = LocalRank(local_rank), .floor = floor});
  }
  void Wish(bool ends_job = false) {
    stop_.Wish({.signal = SIGTERM, .ends_job = ends_job, .reason = "node1 was told to end"},
               workers_, turn_);
  }
  WorkerGroup workers_;
  AgreedStop stop_;
};

TEST_F(AgreedStopTest, TellsWorkersThatAStopIsAskedForAndThenItsStep) {
  EXPECT_FALSE(stop_.is_known());
  EXPECT_TRUE(Take(kStopStepOpen));
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("stop_asked"), "tell_stop step=open"));
  EXPECT_TRUE(Take(12));
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("every rank leaves after step 12 (somebody asked)"),
                                     "tell_stop step=12"));
  EXPECT_FALSE(Take(12));
  EXPECT_THAT(Effects(), IsEmpty()) << "the server says the same with each answer";
}

TEST_F(AgreedStopTest, TellsWorkersAgainWithoutANewLineWhereOnlyTheReasonIsNew) {
  Take(kStopStepOpen);
  Effects();
  stop_.Take({.round = Round(0), .reason = "somebody else asked"}, turn_);
  EXPECT_THAT(Effects(), ElementsAre("tell_stop step=open"));
}

TEST_F(AgreedStopTest, HasAFloorOnlyWhileAStopIsKnown) {
  Promise(0, 3);
  Promise(1, 5);
  EXPECT_EQ(stop_.Floor(workers_), std::nullopt);
  Take(kStopStepOpen);
  EXPECT_THAT(stop_.Floor(workers_), Optional(5));
  stop_.BeginRound();
  EXPECT_EQ(stop_.Floor(workers_), std::nullopt);
}

TEST_F(AgreedStopTest, WithdrawsOnlyAStopWhoseStepIsOpen) {
  stop_.Withdraw(workers_, turn_);
  EXPECT_THAT(Effects(), IsEmpty());
  Take(kStopStepOpen);
  Effects();
  stop_.Withdraw(workers_, turn_);
  EXPECT_THAT(Effects(), ElementsAre("tell_stop withdrawn"));
  EXPECT_FALSE(stop_.is_known());
  Take(12);
  Effects();
  stop_.Withdraw(workers_, turn_);
  EXPECT_THAT(Effects(), IsEmpty());
  EXPECT_TRUE(stop_.is_known());
}

TEST_F(AgreedStopTest, WishesForHalfOfTheGraceAndOnceAStepIsNamedForAllButItsLastSeconds) {
  const absl::Duration grace = options_.settings.shutdown_timeout;
  Wish();
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("once more stops 2 workers at once")));
  EXPECT_EQ(stop_.patience_ends(), now() + grace / 2);
  Take(kStopStepOpen);
  EXPECT_EQ(stop_.patience_ends(), now() + grace / 2);
  Take(12);
  EXPECT_EQ(stop_.patience_ends(), now() + grace - options_.lost_peer_grace);
  Pass(absl::Seconds(4));
  EXPECT_EQ(stop_.GraceLeft(now()), grace - absl::Seconds(4));
}

TEST_F(AgreedStopTest, AsksToBeDrainedUnlessTheJobEnds) {
  EXPECT_EQ(stop_.Wished(), std::nullopt);
  Wish();
  EXPECT_EQ(stop_.Wished(), (StopWish{SIGTERM, /*drain_me=*/true, "node1 was told to end"}));
  Wish(/*ends_job=*/true);
  EXPECT_FALSE(stop_.Wished()->drain_me);
}

TEST_F(AgreedStopTest, EndsTheJobWithTheNodeThatHostsItsServer) {
  options_.hosts_server = true;
  Wish();
  EXPECT_FALSE(stop_.Wished()->drain_me);
  EXPECT_TRUE(stop_.departure().ends_job);
}

TEST_F(AgreedStopTest, SaysWhatHasNotComeInTimeAsItGivesUp) {
  Wish();
  Effects();
  EXPECT_EQ(stop_.GiveUp(workers_, turn_), stop_.departure());
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("no step has been agreed on in time; stopping 2")));
  Take(12);
  workers_.NoteEnd(LocalRank(0));
  Effects();
  stop_.GiveUp(workers_, turn_);
  EXPECT_THAT(Effects(),
              ElementsAre(HasSubstr("not all workers have left after step 12; stopping 1 of them "
                                    "by SIGTERM")));
  workers_.NoteEndOfAll();
  stop_.GiveUp(workers_, turn_);
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(AgreedStopTest, KeepsAWishIntoTheNextRound) {
  Wish();
  stop_.BeginRound();
  EXPECT_TRUE(stop_.is_wished());
}

}  // namespace
}  // namespace muster::agent

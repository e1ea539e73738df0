#include "rendezvous/hangs/judge/hang_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "rendezvous/hangs/evidence/gatherings.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Minutes(10);

// A job of two ranks, of which some are silent, watched once a second.
class HangWatch : public ::testing::Test {
 protected:
  HangWatch() {
    for (int r : {0, 1}) {
      pulses_.push_back({.rank = r,
                         .is_told = true,
                         .phase = Phase::kReduce,
                         .num_steps = 6,
                         .has_operations = true});
    }
    Listen();
  }

  // Whether evidence is wanted.
  bool Listen(const std::vector<RankSilence>& of_mute = {}) {
    meter_.Listen(pulses_, now_, of_mute);
    judge_.limits().history().Add(meter_.Learned(), std::exchange(learned_, meter_.Learned()));
    return judge_.Hear(meter_.Silences());
  }
  void StartRound() {
    meter_.StartRound();
    judge_.StartRound();
  }

  // `seconds` times: a second passes, then the ranks of `busy` do something.
  void Pass(int seconds, const Diagnosis& diagnosis, const std::vector<int>& busy = {}) {
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + kWatchInterval;
      for (const int r : busy) ++pulses_[r].token;
      if (!Listen()) continue;
      for (WatchEffect& effect : judge_.Judge(diagnosis)) {
        if (const auto* notice = std::get_if<Notice>(&effect))
          notices_.push_back(notice->diagnosis.Describe());
        if (const auto* verdict = std::get_if<Verdict>(&effect)) verdicts_.push_back(*verdict);
        if (std::holds_alternative<Recovery>(effect)) ++recoveries_;
      }
    }
  }

  static Diagnosis RankOneIsMissing() {
    EvidenceBuilder job(2);
    const int world = job.AddWorld();
    return Diagnose(job.Waits(0, world, AllReduce(7)).Build());
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  SilenceMeter meter_;
  HangJudge judge_;
  LearnedSilences learned_;
  std::vector<Pulse> pulses_;
  std::vector<std::string> notices_;
  std::vector<Verdict> verdicts_;
  int recoveries_ = 0;
};

TEST_F(HangWatch, GivesNoticeWithinSevenSecondsAndAccusesNobody) {
  Pass(5, RankOneIsMissing());
  EXPECT_THAT(notices_, IsEmpty());
  Pass(2, RankOneIsMissing());
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("rank 1 has not called all_reduce #7")));
  Pass(200, RankOneIsMissing());
  EXPECT_THAT(notices_, testing::SizeIs(1)) << "once";
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, GivesNoticeOfARankThatLoopsInHalfTheTimeOfABusyOne) {
  Diagnosis busy = RankOneIsMissing();
  busy.is_busy = true;
  busy.loop = true;
  Pass(28, busy);
  EXPECT_THAT(notices_, IsEmpty());
  Pass(4, busy);
  EXPECT_THAT(notices_, testing::SizeIs(1));
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, NoticesWhatIsInferredAndNeverJudgesIt) {
  Diagnosis guess = RankOneIsMissing();
  guess.is_inferred = true;
  Pass(2000, guess);
  EXPECT_THAT(notices_, testing::SizeIs(1));
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, JudgesAtTheHardLimitOnce) {
  Pass(599, RankOneIsMissing());
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(100, RankOneIsMissing());
  ASSERT_EQ(verdicts_.size(), 1u);
  EXPECT_THAT(verdicts_[0].diagnosis.culprits, ElementsAre(1));
  EXPECT_THAT(verdicts_[0].reason, HasSubstr("600 s (--hang_timeout)"));
  EXPECT_EQ(verdicts_[0].since_detected, absl::Seconds(595)) << "after five seconds of silence";
}

TEST_F(HangWatch, SaysWhenItGoesOn) {
  Pass(20, RankOneIsMissing());
  Pass(1, {}, {0, 1});
  EXPECT_EQ(recoveries_, 1);
  Pass(1000, {}, {0, 1});
  EXPECT_EQ(recoveries_, 1);
}

TEST_F(HangWatch, SaysWhenItGoesOnAlsoAfterAVerdict) {
  Pass(700, RankOneIsMissing());
  ASSERT_EQ(verdicts_.size(), 1u);
  EvidenceBuilder job(2);
  job.rank(1).life = Life::kUnreachable;
  const int world = job.AddWorld();
  Pass(20, Diagnose(job.Waits(0, world, AllReduce(7)).Build()));
  EXPECT_EQ(recoveries_, 0) << "where something else is found, nothing has moved";
  Pass(1, {}, {0, 1});
  EXPECT_EQ(recoveries_, 1);
  Pass(1000, {}, {0, 1});
  EXPECT_EQ(recoveries_, 1);
}

// A node that was out of reach answers before its rank has moved: what was said of it is still owed
// its end.
TEST_F(HangWatch, SaysWhenItGoesOnAlsoWhereSomethingElseWasFoundBefore) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.rank(1).life = Life::kUnreachable;
  Pass(15, Diagnose(job.Waits(0, world, AllReduce(7)).Build()), {1});
  ASSERT_THAT(notices_, ElementsAre(HasSubstr("of which nothing is known")));
  Pass(1, RankOneIsMissing());
  EXPECT_EQ(recoveries_, 0);
  Pass(1, RankOneIsMissing(), {0, 1});
  EXPECT_EQ(recoveries_, 1);
  Pass(20, RankOneIsMissing(), {0, 1});
  EXPECT_EQ(recoveries_, 1) << "once";
}

TEST_F(HangWatch, SaysNothingOfAPauseUnderFiveSeconds) {
  Pass(4, RankOneIsMissing());
  Pass(1, {}, {0, 1});
  Pass(4, RankOneIsMissing());
  Pass(1, {}, {0, 1});
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_EQ(recoveries_, 0);
}

TEST_F(HangWatch, GivesOneNoticeOfOnePauseAlsoWhereMoreIsKnownOfItLater) {
  EvidenceBuilder job(2);
  job.rank(1).life = Life::kUnreachable;
  const int world = job.AddWorld();
  Pass(20, Diagnose(job.Waits(0, world, AllReduce(7)).Build()));
  Pass(20, RankOneIsMissing());
  EXPECT_THAT(notices_, testing::SizeIs(1));
  Pass(1, {}, {0, 1});
  EXPECT_EQ(recoveries_, 1);
  Pass(20, RankOneIsMissing());
  EXPECT_THAT(notices_, testing::SizeIs(2)) << "of the next pause";
}

TEST_F(HangWatch, GivesAMinuteToARankThatComputesOrDoesIo) {
  Diagnosis busy = RankOneIsMissing();
  busy.is_busy = true;
  Pass(59, busy);
  EXPECT_THAT(notices_, IsEmpty());
  Pass(2, busy);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("rank 1 has not called all_reduce #7")));
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, NeverJudgesWhereTheOneThatIsWaitedForStillDoesSomething) {
  Pass(3000, RankOneIsMissing(), {1});
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
}

using AcceptanceVector14 = HangWatch;

TEST_F(AcceptanceVector14, KeepsQuietDuringALongCheckpoint) {
  pulses_[1].phase = Phase::kSave;
  ++pulses_[1].token;
  Pass(50, RankOneIsMissing());
  EXPECT_THAT(notices_, IsEmpty());
  Pass(600, RankOneIsMissing());
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, GivesAFirstStepMoreTime) {
  StartRound();
  for (Pulse& pulse : pulses_) pulse.num_steps = 1;
  Pass(700, RankOneIsMissing());
  EXPECT_THAT(notices_, testing::SizeIs(1));
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, JudgesAMismatchInSecondsBecauseItCannotHeal) {
  pulses_.push_back(pulses_[0]);
  pulses_[2].rank = 2;
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.AllWaitBut({1}, world, AllReduce(7)).Waits(1, world, AllReduce(7, 8));
  Pass(9, Diagnose(job.Build()));
  ASSERT_EQ(verdicts_.size(), 1u);
  EXPECT_EQ(verdicts_[0].reason, "waiting cannot heal it");
}

TEST_F(HangWatch, GivesNoticeOfATieAndJudgesItAtTheHardLimitAlone) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(0, world, AllReduce(7)).Waits(1, world, AllReduce(7, 8));
  Pass(599, Diagnose(job.Build()));
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("which of them is right cannot be told")));
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(10, Diagnose(job.Build()));
  EXPECT_EQ(verdicts_.size(), 1u);
}

TEST_F(HangWatch, LearnsFromTheRankThatTookLongAndNotFromThoseThatWaitedForIt) {
  pulses_[1].phase = Phase::kSave;
  ++pulses_[1].token;
  pulses_[0].is_waiting = true;
  Pass(500, RankOneIsMissing());
  pulses_[0].is_waiting = false;
  Pass(1, {}, {0, 1});
  EXPECT_EQ(judge_.limits().Hard(WatchPhase::kCheckpoint), 5 * absl::Seconds(500));
  EXPECT_EQ(judge_.limits().Hard(WatchPhase::kStep), kTimeout);
}

TEST_F(HangWatch, GivesARankBehindItsLastStepMoreTimeAndLearnsHowLongItsEndTook) {
  pulses_[1].phase = Phase::kEnd;
  ++pulses_[1].token;
  Pass(50, RankOneIsMissing());
  EXPECT_THAT(notices_, IsEmpty());
  Pass(1500, RankOneIsMissing());
  EXPECT_THAT(verdicts_, IsEmpty());
  for (const int rank : {0, 1, 2}) meter_.Finish(rank);
  Listen();
  EXPECT_EQ(judge_.limits().Hard(WatchPhase::kEnd), 5 * absl::Seconds(1549));
  EXPECT_EQ(judge_.limits().Hard(WatchPhase::kStep), kTimeout) << "who waits teaches nothing";
}

TEST_F(HangWatch, JudgesARankBehindItsLastStepForWhichOthersWaitAtThreeTimesTheTimeout) {
  pulses_[1].phase = Phase::kEnd;
  ++pulses_[1].token;
  Pass(1790, RankOneIsMissing());
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(20, RankOneIsMissing());
  EXPECT_EQ(verdicts_.size(), 1u);
}

TEST_F(HangWatch, JudgesACircleWhenNoThreadHasOpenedItForHalfAMinute) {
  EvidenceBuilder job(2);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {0, 1});
  const Diagnosis circle =
      Diagnose(job.Waits(0, a, AllReduce(0)).Waits(1, b, AllReduce(0)).Build());
  Pass(29, circle);
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(5, circle);
  EXPECT_EQ(verdicts_.size(), 1u);
}

TEST_F(HangWatch, LeavesAJobAloneAllOfWhichIsStopped) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(0, world, AllReduce(7));
  for (const int r : {0, 1}) job.rank(r).life = Life::kStopped;
  Pass(3000, Diagnose(job.Build()));
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(HangWatch, JudgesAStoppedRankAfterTenSeconds) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(0, world, AllReduce(7));
  job.rank(1).life = Life::kStopped;
  Pass(8, Diagnose(job.Build()));
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(5, Diagnose(job.Build()));
  EXPECT_EQ(verdicts_.size(), 1u);
}

TEST_F(HangWatch, NeverJudgesWhatIsOutOfSight) {
  EvidenceBuilder job(2);
  const int wide = job.AddGroup("world", {0, 1, kUnknownRank});
  job.Waits(0, wide, AllReduce(6)).Waits(1, wide, AllReduce(6));
  Pass(5000, Diagnose(job.Build()));
  EXPECT_THAT(notices_, testing::SizeIs(1));
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(HangWatch, GivesLongComputationsTwoMinutesBeforeAWordIsSaid) {
  const Diagnosis silent{.finding = Finding::kSilent, .culprits = {0, 1}};
  Pass(119, silent);
  EXPECT_THAT(notices_, IsEmpty());
  Pass(100, silent);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("no rank moves")));
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(1, silent, {0});
  Pass(500, silent);
  EXPECT_THAT(verdicts_, IsEmpty()) << "one of them went on";
}

TEST_F(HangWatch, AnotherRoundBeginsWithoutSilence) {
  Pass(400, RankOneIsMissing());
  StartRound();
  Pass(300, RankOneIsMissing());
  EXPECT_THAT(verdicts_, IsEmpty());
}

// --- Ranks that tell nothing, of which PyTorch's store tells

class HangWatchAtTheStart : public HangWatch {
 protected:
  HangWatchAtTheStart() {
    StartRound();
    for (Pulse& pulse : pulses_) pulse = {.rank = pulse.rank, .is_told = pulse.rank == 0};
  }
  // Rank 0 has come to init_process_group; rank 1, which tells nothing, has not for `seconds` more.
  void PassWithoutRankOne(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + kWatchInterval;
      missing_for_ += kWatchInterval;
      const Gathering init{.name = "init_process_group",
                           .is_start = true,
                           .waiting = {0},
                           .missing = {1},
                           .silent_for = missing_for_};
      if (!Listen(SilencesOf({init}, meter_.mute()))) continue;
      EvidenceBuilder job(2);
      job.rank(1).is_mute = true;
      Evidence evidence = job.Build();
      AddGatherings({init}, evidence);
      for (WatchEffect& effect : judge_.Judge(Diagnose(evidence))) {
        if (const auto* notice = std::get_if<Notice>(&effect))
          notices_.push_back(notice->diagnosis.Describe());
        if (const auto* verdict = std::get_if<Verdict>(&effect)) verdicts_.push_back(*verdict);
      }
    }
  }
  absl::Duration missing_for_;
};

TEST_F(HangWatchAtTheStart, ARankThatHasNotComeIsNoticedAfterAMinuteAndJudgedAtTheHardLimit) {
  PassWithoutRankOne(58);
  EXPECT_THAT(notices_, IsEmpty());
  PassWithoutRankOne(5);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("rank 1 has not called init_process_group")));
  PassWithoutRankOne(1800 - 63 - 5);
  EXPECT_THAT(verdicts_, IsEmpty()) << "three times --hang_timeout";
  PassWithoutRankOne(10);
  ASSERT_EQ(verdicts_.size(), 1u);
  EXPECT_THAT(verdicts_[0].diagnosis.culprits, ElementsAre(1));
}

// It tells nothing any more, and will not come to the barrier.
TEST_F(HangWatch, ARankThatHasEndedBeforeABarrierIsJudgedAtTheHardLimitOfThoseWhoWait) {
  pulses_[1].is_told = false;
  EvidenceBuilder job(2);
  job.rank(1).is_mute = true;
  job.rank(1).life = Life::kEnded;
  Evidence evidence = job.Build();
  AddGatherings({{.name = "barrier 'k'", .waiting = {0}, .missing = {1}}}, evidence);
  Pass(590, Diagnose(evidence));
  EXPECT_THAT(notices_, ElementsAre("rank 1 has ended without calling barrier 'k'; rank 0 waits"));
  EXPECT_THAT(verdicts_, IsEmpty()) << "another process of it may come";
  Pass(20, Diagnose(evidence));
  ASSERT_EQ(verdicts_.size(), 1u);
  EXPECT_THAT(verdicts_[0].diagnosis.culprits, ElementsAre(1));
}

TEST_F(HangWatch, ARankThatWritesNoBoardIsNeverSilent) {
  StartRound();
  for (Pulse& pulse : pulses_) pulse.is_told = false;
  Pass(5000, RankOneIsMissing());
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(verdicts_, IsEmpty());
}

}  // namespace
}  // namespace muster::hangs

#include "rendezvous/hangs/evidence/gatherings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "rendezvous/hangs/evidence/diagnosis.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Gathering Init(std::vector<int> waiting, std::vector<int> missing) {
  return {.name = "init_process_group",
          .is_start = true,
          .waiting = std::move(waiting),
          .missing = std::move(missing)};
}
Gathering Barrier(std::vector<int> waiting, std::vector<int> missing) {
  Gathering barrier = Init(std::move(waiting), std::move(missing));
  barrier.name = "barrier 'k'";
  barrier.is_start = false;
  return barrier;
}

// Ranks that tell nothing, on nodes whose agents answer.
EvidenceBuilder MuteRanks(int num_ranks) {
  EvidenceBuilder job(num_ranks);
  for (int r = 0; r < num_ranks; ++r) {
    job.rank(r).is_mute = true;
    job.rank(r).life = Life::kUnreachable;
    job.rank(r).tells_waits = false;
  }
  return job;
}

Diagnosis DiagnoseWith(const std::vector<Gathering>& gatherings, const EvidenceBuilder& job) {
  Evidence evidence = job.Build();
  AddGatherings(gatherings, evidence);
  return Diagnose(evidence);
}

TEST(AddGatherings, NamesTheRanksThatHaveNotCome) {
  const Diagnosis found = DiagnoseWith({Init({0, 1}, {2, 4})}, MuteRanks(5));
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(2, 4));
  EXPECT_THAT(found.waiting, ElementsAre(0, 1)) << "rank 3 has come, and does something else";
  EXPECT_EQ(found.Describe(),
            "ranks 2 and 4 have not called init_process_group; ranks 0 and 1 wait");
  EXPECT_TRUE(found.can_heal);
  EXPECT_EQ(found.cause, Cause::kNeverArrived);
}

TEST(AddGatherings, NamesThemBesideRanksThatTellWhatTheyDo) {
  EvidenceBuilder job = MuteRanks(3);
  for (const int told : {0, 1}) {
    job.rank(told).is_mute = false;
    job.rank(told).life = Life::kRunning;
  }
  EXPECT_THAT(DiagnoseWith({Init({0, 1}, {2})}, job).culprits, ElementsAre(2));
}

TEST(AddGatherings, DoesNotOverruleARankThatHasCalledSomethingAtTheStart) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.Called(2, world, Done(AllReduce(0)));
  EXPECT_NE(DiagnoseWith({Init({0, 1}, {2})}, job).finding, Finding::kNotCalled);
  EXPECT_THAT(DiagnoseWith({Barrier({0, 1}, {2})}, job).culprits, ElementsAre(2))
      << "a barrier may come at any time";
}

// Groups of fewer ranks than the job's: the others are never to come, and what a rank of the group
// awaits at the store, however long, is not the start.
TEST(AddGatherings, DoesNotTakeAWaitOfARankThatHasMetOthersForTheStart) {
  EvidenceBuilder job(4);
  const int pair = job.AddGroup("default_pg", {0, 1});
  for (const int rank : {0, 1}) job.Called(rank, pair, Done(AllReduce(0)));
  const Diagnosis found = DiagnoseWith({Init({0}, {2, 3})}, job);
  EXPECT_EQ(found.finding, Finding::kNobodyWaits);
  EXPECT_THAT(found.culprits, IsEmpty());
}

// Over NCCL groups are made alone, and ranks meet at the first collective.
TEST(AddGatherings, TakesAWaitForTheStartAfterTheMakingOfGroups) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  for (const int rank : {0, 1}) {
    job.Called(rank, world, Done({.kind = OperationKind::kBarrier, .name = "new_group"}));
  }
  EXPECT_THAT(DiagnoseWith({Init({0, 1}, {2})}, job).culprits, ElementsAre(2));
}

TEST(AddGatherings, AccusesNoRankWhoseAgentDoesNotAnswer) {
  EvidenceBuilder job = MuteRanks(3);
  job.rank(2).is_mute = false;
  const Diagnosis found = DiagnoseWith({Init({0, 1}, {2})}, job);
  EXPECT_EQ(found.finding, Finding::kOutOfSight);
  EXPECT_THAT(found.culprits, IsEmpty());
}

TEST(AddGatherings, WaitsForARankThatHasEndedLikeForAnyOther) {
  EvidenceBuilder job = MuteRanks(3);
  job.rank(2).life = Life::kEnded;
  const Diagnosis found = DiagnoseWith({Init({0, 1}, {2})}, job);
  EXPECT_EQ(found.finding, Finding::kEnded);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_TRUE(found.can_heal) << "a process that it has started may come";
}

TEST(AddGatherings, FollowsTheWaitingFromABarrierToACollective) {
  EvidenceBuilder job(3);
  const int pair = job.AddGroup("pair", {1, 2});
  job.Waits(1, pair, AllReduce(7));
  const Diagnosis found = DiagnoseWith({Barrier({0}, {1, 2})}, job);
  EXPECT_THAT(found.culprits, ElementsAre(2)) << "rank 1 cannot come, for it waits for rank 2";
}

TEST(AddGatherings, LeavesACircleThroughABarrierToTheLimit) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Waits(1, world, AllReduce(7));
  const Diagnosis found = DiagnoseWith({Barrier({0}, {1})}, job);
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_TRUE(found.can_heal) << "a thread of rank 0 may wait there, while another goes on";
}

TEST(AddGatherings, IgnoresRanksThatDoNotExist) {
  EXPECT_THAT(DiagnoseWith({Init({0, 77}, {1, 99})}, MuteRanks(2)).culprits, ElementsAre(1));
}

// --- For how long nobody has come

class Watching : public ::testing::Test {
 protected:
  absl::Duration SilenceAfter(absl::Duration pause, std::vector<Gathering> there) {
    now_ = now_ + pause;
    watch_.Listen(std::move(there), now_);
    const std::vector<Gathering>& known = watch_.At(now_);
    return known.empty() ? -absl::Seconds(1) : known[0].silent_for;
  }
  GatheringWatch watch_;
  MonoTime now_ = MonoTime::At(absl::Hours(1));
};

TEST_F(Watching, CountsFromTheLastThatCame) {
  EXPECT_EQ(SilenceAfter(absl::Seconds(1), {Init({0}, {1, 2, 3})}), absl::ZeroDuration());
  EXPECT_EQ(SilenceAfter(absl::Seconds(1), {Init({0}, {1, 2, 3})}), absl::Seconds(1));
  EXPECT_EQ(SilenceAfter(absl::Seconds(1), {Init({0, 1}, {2, 3})}), absl::ZeroDuration());
  EXPECT_EQ(SilenceAfter(absl::Seconds(1), {Init({1}, {2, 3})}), absl::Seconds(1))
      << "who waits does not matter";
  EXPECT_EQ(SilenceAfter(absl::Seconds(1), {Barrier({1}, {2, 3})}), absl::ZeroDuration());
}

TEST_F(Watching, CountsOnlyWhatWasWatched) {
  SilenceAfter(absl::Seconds(1), {Init({0}, {1})});
  EXPECT_EQ(SilenceAfter(absl::Hours(3), {Init({0}, {1})}), kGapMax);
  EXPECT_EQ(SilenceAfter(-absl::Hours(3), {Init({0}, {1})}), kGapMax) << "a clock that jumps";
}

TEST_F(Watching, ForgetsWhatTheStoreTellsNoMore) {
  SilenceAfter(absl::Seconds(1), {Init({0}, {1})});
  EXPECT_THAT(watch_.At(now_ + absl::Seconds(4)), ElementsAre(Init({0}, {1})));
  EXPECT_THAT(watch_.At(now_ + absl::Seconds(6)), IsEmpty());
}

TEST(SilencesOf, AreThoseOfRanksThatTellNothingThemselves) {
  Gathering init = Init({0, 1}, {2, 3, 4});
  init.silent_for = absl::Seconds(30);
  const std::vector<RankSilence> silences =
      SilencesOf({init}, {{1, absl::Seconds(40)}, {2, absl::Seconds(40)}, {3, absl::Seconds(5)}});
  EXPECT_THAT(silences, ElementsAre(RankSilence{1, WatchPhase::kStart, absl::Seconds(30)},
                                    RankSilence{2, WatchPhase::kStart, absl::Seconds(30)},
                                    RankSilence{3, WatchPhase::kStart, absl::Seconds(5)}));
}

// A thread may wait there, or have still to come there, while the rank works.
TEST(SilencesOf, AreNotToldByBarriers) {
  Gathering barrier = Barrier({0}, {1});
  barrier.silent_for = absl::Hours(1);
  EXPECT_THAT(SilencesOf({barrier}, {{0, absl::Hours(1)}, {1, absl::Hours(1)}}), IsEmpty());
}

TEST(MarkToldByStore, SaysItOfRanksOfWhichNobodyElseTells) {
  std::vector<RankReport> reports = {
      {.rank = 0, .told_by = ToldBy::kTorch}, {.rank = 1}, {.rank = 2}, {.rank = 3}};
  MarkToldByStore({Init({0, 1}, {2}), Barrier({1}, {3})}, reports);
  EXPECT_EQ(reports[0].told_by, ToldBy::kTorch);
  EXPECT_EQ(reports[1].told_by, ToldBy::kTorchStore);
  EXPECT_EQ(reports[2].told_by, ToldBy::kTorchStore);
  EXPECT_EQ(reports[3].told_by, ToldBy::kUnknown) << "a barrier tells of no silence";
}

}  // namespace
}  // namespace muster::hangs

#include "rendezvous/hangs/evidence/cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

Diagnosis RankOneHasNotCalled() {
  EvidenceBuilder job(2);
  return Diagnose(job.Waits(0, job.AddWorld(), AllReduce(7)).Build());
}
Cause CauseOfRankOne(RankReport report) {
  report.rank = 1;
  return RefineCause(RankOneHasNotCalled(), {{.rank = 0, .hold = Hold::kLock}, report});
}

TEST(Cause, IsThatARankNeverArrivedWhereNothingMoreIsKnown) {
  EXPECT_EQ(RankOneHasNotCalled().cause, Cause::kNeverArrived);
  EXPECT_EQ(CauseOfRankOne({}), Cause::kNeverArrived)
      << "what the waiting rank waits for is no cause";
}

TEST(Cause, IsTheDataLoaderByTheStackOfTheRankAtFault) {
  EXPECT_EQ(CauseOfRankOne({.frames = {"read", "app::SleepInTheDataLoader()", "main"}}),
            Cause::kDataLoader);
  EXPECT_EQ(
      CauseOfRankOne({.hold = Hold::kLock, .frames = {"futex", "muster::BatchReader::Next(long)"}}),
      Cause::kDataLoader);
}

TEST(Cause, IsWhatTheRankAtFaultWaitsForInTheKernel) {
  EXPECT_EQ(CauseOfRankOne({.hold = Hold::kLock}), Cause::kLock);
  EXPECT_EQ(CauseOfRankOne({.hold = Hold::kDisk}), Cause::kDisk);
  EXPECT_EQ(CauseOfRankOne({.hold = Hold::kMemory}), Cause::kMemory);
}

TEST(Cause, TellsAnotherSizeFromAnotherOperation) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.AllWaitBut({2}, world, AllReduce(7)).Waits(2, world, AllReduce(7, 8));
  EXPECT_EQ(Diagnose(job.Build()).cause, Cause::kOtherSize);

  EvidenceBuilder other(3);
  other.AllWaitBut({2}, other.AddWorld(), AllReduce(7));
  other.Waits(2, 0, Of(OperationKind::kBroadcast, 7, 0));
  EXPECT_EQ(Diagnose(other.Build()).cause, Cause::kOtherOperation);

  EvidenceBuilder earlier(3);
  earlier.AllWaitBut({2}, earlier.AddWorld(), AllReduce(7)).Waits(2, 0, AllReduce(7, 4096, 99));
  EXPECT_EQ(Diagnose(earlier.Build()).cause, Cause::kOtherOperation) << "some call before differed";
}

TEST(Cause, IsTheOrderOfGroupsInACircle) {
  EvidenceBuilder job(2);
  const int a = job.AddGroup("a", {0, 1});
  const int b = job.AddGroup("b", {0, 1});
  EXPECT_EQ(Diagnose(job.Waits(0, a, AllReduce(0)).Waits(1, b, AllReduce(0)).Build()).cause,
            Cause::kReversedOrder);
}

TEST(Cause, IsAPeerThatHasEndedOrIsStopped) {
  for (const auto& [life, cause] :
       {std::pair(Life::kEnded, Cause::kDeadPeer), std::pair(Life::kNoReply, Cause::kDeadPeer),
        std::pair(Life::kStopped, Cause::kStopped)}) {
    EvidenceBuilder job(2);
    job.Waits(0, job.AddWorld(), AllReduce(7));
    job.rank(1).life = life;
    EXPECT_EQ(Diagnose(job.Build()).cause, cause);
  }
}

TEST(Cause, IsTheLinkWhereAllHaveCalled) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.AllWaitBut({}, world, AllReduce(7));
  EXPECT_EQ(Diagnose(job.Build()).cause, Cause::kSlowLink);
  job.rank(1).fault = "network interface eth0 of its node is down";
  EXPECT_EQ(Diagnose(job.Build()).cause, Cause::kSlowLink);
}

TEST(Cause, IsNotKnownOfRanksThatNobodySees) {
  EvidenceBuilder job(2);
  job.Waits(0, job.AddWorld(), AllReduce(7));
  job.rank(1).life = Life::kUnreachable;
  EXPECT_EQ(Diagnose(job.Build()).cause, Cause::kUnknown);
}

TEST(Cause, HasANameForProgramsOfItsOwn) {
  std::set<absl::string_view> names;
  for (int i = 0; i <= static_cast<int>(Cause::kDisk); ++i) {
    names.insert(ToString(static_cast<Cause>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Cause::kDisk) + 1);
}

}  // namespace
}  // namespace muster::hangs

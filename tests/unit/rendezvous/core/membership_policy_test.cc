#include "rendezvous/core/membership_policy.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

JobState Elastic() {
  JobState state;
  state.settings = Settings(1, 4);
  return state;
}

TEST(IsHeldBack, IsFreeAfterTheFirstChange) {
  JobState state = Elastic();
  RecordChange(state, "node1", At(0));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(1)));
}

TEST(IsHeldBack, DoublesItsTimeWithEachFurtherChange) {
  JobState state = Elastic();
  for (int i = 0; i < 3; ++i) RecordChange(state, "node1", At(0));
  EXPECT_TRUE(IsHeldBack(state, "node1", At(59)));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(60)));
  for (int i = 0; i < 30; ++i) RecordChange(state, "node1", At(0));
  EXPECT_TRUE(IsHeldBack(state, "node1", At(1799)));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(1800)));
}

TEST(IsHeldBack, ConcernsOneNodeOnly) {
  JobState state = Elastic();
  for (int i = 0; i < 3; ++i) RecordChange(state, "node1", At(0));
  EXPECT_FALSE(IsHeldBack(state, "node2", At(1)));
}

TEST(IsHeldBack, IsNobodyWhereAllComeAndGo) {
  JobState state = Elastic();
  for (int i = 0; i < 8; ++i) {
    for (int n = 1; n <= 4; ++n) RecordChange(state, "node" + std::to_string(n), At(i));
  }
  // Each new change makes its node one of seven to eight.
  for (int n = 2; n <= 4; ++n) EXPECT_FALSE(IsHeldBack(state, "node" + std::to_string(n), At(8)));
  for (int i = 0; i < 20; ++i) RecordChange(state, "node1", At(8));
  EXPECT_TRUE(IsHeldBack(state, "node1", At(9))) << "it stands out";
}

// One of eight nodes has gone twice, and two others have gone once.
TEST(IsHeldBack, IsNobodyWhereAFewHaveGoneByChance) {
  JobState state = Elastic();
  for (uint64_t n = 1; n <= 8; ++n) {
    state.nodes[Incarnation(n)].report.node.name = "node" + std::to_string(n);
  }
  for (const char* name : {"node2", "node3", "node1", "node1"}) RecordChange(state, name, At(0));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(1)));
  for (int i = 0; i < 2; ++i) RecordChange(state, "node1", At(2));
  EXPECT_TRUE(IsHeldBack(state, "node1", At(3)));
}

TEST(IsHeldBack, ForgivesANodeThatHasBeenQuiet) {
  JobState state = Elastic();
  for (int i = 0; i < 3; ++i) RecordChange(state, "node1", At(0));
  RecordChange(state, "node1", At(60 + 600));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(661)));
}

TEST(IsHeldBack, IsNobodyInAStaticJob) {
  JobState state = Elastic();
  state.settings = StaticSettings(2);
  for (int i = 0; i < 3; ++i) RecordChange(state, "node1", At(0));
  EXPECT_FALSE(IsHeldBack(state, "node1", At(1)));
}

TEST(RecordChange, KeepsABoundedNumberOfHistories) {
  JobState state = Elastic();
  for (size_t i = 0; i < kMaxNodeHistories + 100; ++i) {
    RecordChange(state, "node" + std::to_string(i), At(0));
  }
  EXPECT_LE(state.histories.size(), kMaxNodeHistories);
}

class GrowthTest : public CoreTest {};

TEST_F(GrowthTest, WaitsUntilTheRoundHasRunForAWhile) {
  CoreUnderTest& job = Job(Settings(1, 3));
  job.Join(1);
  job.Advance(30, {1});
  ASSERT_EQ(job.state().phase, JobPhase::kRunning);
  job.SendPhase(1, AgentPhase::kRunning);
  job.Join(2);
  job.Advance(9.9, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.Advance(0.1, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  EXPECT_EQ(job.state().forming_reason, "node2 joined");
}

TEST_F(GrowthTest, TakesThoseThatComeTogetherInTogether) {
  CoreUnderTest& job = Job(Settings(1, 4));
  job.Join(1);
  job.Advance(30, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  job.Advance(60, {1});
  job.Join(2);
  job.Advance(1, {1, 2});
  job.Join(3);
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  job.Advance(1, {1, 2, 3});
  EXPECT_EQ(job.state().forming_reason, "node2 and node3 joined");
}

TEST_F(GrowthTest, WaitsTwiceAsLongAfterEachHastyChange) {
  JobState state = Elastic();
  state.phase = JobPhase::kRunning;
  state.members = {Incarnation(1), Incarnation(2)};
  state.joined[7] = Incarnation(7);
  state.nodes[Incarnation(7)].report.node.name = "node7";
  for (int i = 0; i < 3; ++i) RecordRoundEnd(state, StopCause::kMembershipChange, At(10));
  EXPECT_EQ(GrowthTime(state), At(80));
  RecordRoundEnd(state, StopCause::kMembershipChange, At(300));
  EXPECT_EQ(GrowthTime(state), At(10));
  Job(Settings(1, 1)).Join(1);
}

TEST_F(GrowthTest, DoesNotDoubleItsTimeWhereHalfOfTheNodesWait) {
  JobState state = Elastic();
  state.phase = JobPhase::kRunning;
  state.members = {Incarnation(1)};
  state.joined[7] = Incarnation(7);
  state.nodes[Incarnation(7)].report.node.name = "node7";
  for (int i = 0; i < 3; ++i) RecordRoundEnd(state, StopCause::kMembershipChange, At(10));
  EXPECT_EQ(GrowthTime(state), At(10));
  Job(Settings(1, 1)).Join(1);
}

TEST_F(GrowthTest, TakesANodeThatComesBackForTheFirstTimeAtOnce) {
  CoreUnderTest& job = Job(Settings(1, 3));
  job.RunWith(3);
  job.Leave(3, {.signal = SIGTERM, .reason = "node3 was told to end"});
  for (const int n : {1, 2}) job.Join(n);
  ASSERT_EQ(job.state().round, Round(1));
  for (const int n : {1, 2}) job.SendPhase(n, AgentPhase::kRunning);
  job.Report(4).node = Describe("node3");
  job.Join(4);
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  EXPECT_EQ(job.state().forming_reason, "node3 joined");
}

TEST_F(GrowthTest, NeverEndsARoundWithScaleUpNever) {
  RendezvousSettings settings = Settings(1, 3);
  settings.scale_up = ScaleUp::kNever;
  CoreUnderTest& job = Job(settings);
  job.Join(1);
  job.Advance(30, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  job.Join(2);
  job.Advance(3600, {1, 2});
  EXPECT_EQ(job.state().round, Round(0));
  job.Join(2);
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_THAT(job.Told<Wait>(2)->text, HasSubstr("--scale_up=never"));
}

class GrowthAtCheckpointTest : public GrowthTest {
 protected:
  // Node 1 runs, and node 2 would come in.
  CoreUnderTest& Growable() {
    RendezvousSettings settings = Settings(1, 3);
    settings.scale_up = ScaleUp::kCheckpoint;
    CoreUnderTest& job = Job(settings);
    job.Join(1);
    job.Advance(30, {1});
    job.SendPhase(1, AgentPhase::kRunning);
    job.Join(2);
    return job;
  }
};

TEST_F(GrowthAtCheckpointTest, LetsTheRoundRunUntilACheckpointIsCommitted) {
  CoreUnderTest& job = Growable();
  ASSERT_NE(job.Told<Wait>(2), nullptr);
  EXPECT_THAT(job.Told<Wait>(2)->text, HasSubstr("after the next checkpoint"));
  job.Advance(3600, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  EXPECT_EQ(job.state().forming_reason, "node2 joined");
}

TEST_F(GrowthAtCheckpointTest, KeepsTheHoldOff) {
  CoreUnderTest& job = Growable();
  job.Advance(9, {1, 2});
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
  job.Advance(100, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.Commit(1, 200), absl::OkStatus());
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
}

TEST_F(GrowthAtCheckpointTest, ACheckpointBeforeTheNewcomerCameIsNoneForIt) {
  RendezvousSettings settings = Settings(1, 3);
  settings.scale_up = ScaleUp::kCheckpoint;
  CoreUnderTest& job = Job(settings);
  job.Join(1);
  job.Advance(30, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  job.Advance(60, {1});
  EXPECT_EQ(job.Commit(1, 100), absl::OkStatus());
  job.Join(2);
  job.Advance(100, {1, 2});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
}

TEST_F(GrowthTest, ASpareTakesAPlaceWhenTheRoundEndsForAnotherReason) {
  RendezvousSettings settings = Settings(1, 2, 1);
  settings.scale_up = ScaleUp::kNever;
  CoreUnderTest& job = Job(settings);
  job.Join(1);
  job.Advance(30, {1});
  job.SendPhase(1, AgentPhase::kRunning);
  job.Join(2);
  job.Fail(1);
  job.Join(1);
  EXPECT_EQ(job.state().members.size(), 2u);
}

TEST_F(GrowthTest, ASpareBeyondMaxTakesTheLostNodesPlace) {
  CoreUnderTest& job = Job(Settings(2, 2));
  job.RunWith(3);
  job.Advance(7, {1, 3});
  ASSERT_EQ(job.state().phase, JobPhase::kForming);
  job.Join(1);
  EXPECT_EQ(job.state().members, (std::vector<Incarnation>{Incarnation(1), Incarnation(3)}));
}

// One node comes and goes every second or two, as one with a failing disk or a bad cable does.
TEST_F(GrowthTest, AFlappingNodeCostsAHandfulOfRoundsInTenMinutes) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  const MonoTime end = job.now + absl::Minutes(10);
  int flapping = 3;
  while (job.now < end) {
    job.Report(flapping).node = Describe("node3");
    if (job.state().in_round.contains(Incarnation(flapping))) {
      job.Leave(flapping, {.signal = SIGTERM, .reason = "node3 was told to end"});
      ++flapping;
    } else {
      job.Join(flapping);
    }
    for (const int n : {1, 2}) {
      if (job.state().phase == JobPhase::kForming) job.Join(n);
      if (job.state().phase == JobPhase::kRunning) job.SendPhase(n, AgentPhase::kRunning);
    }
    job.now = job.now + absl::Seconds(1);
    job.Step(Tick{});
  }
  EXPECT_LE(job.state().rounds_completed, 12);
  EXPECT_GT(job.state().rounds_completed, 2);
}

// It dies without a word, and its next start is there before it is missed.
TEST_F(GrowthTest, AFlappingNodeThatIsBackBeforeItsLeaseEndsCostsNoMore) {
  CoreUnderTest& job = Job(Settings(2, 4));
  job.RunWith(3);
  job.Advance(31, {1, 2, 3});
  const MonoTime end = job.now + absl::Minutes(10);
  int flapping = 3;
  while (job.now < end) {
    if (job.state().in_round.contains(Incarnation(flapping))) {
      ++flapping;
    } else {
      job.Report(flapping).node = Describe("node3");
      job.Join(flapping);
    }
    for (const int n : {1, 2}) {
      if (job.state().phase == JobPhase::kForming) job.Join(n);
      if (job.state().phase == JobPhase::kRunning) job.SendPhase(n, AgentPhase::kRunning);
    }
    job.now = job.now + absl::Seconds(1);
    job.Step(Tick{});
  }
  EXPECT_LE(job.state().rounds_completed, 12);
  EXPECT_GT(job.state().rounds_completed, 2);
}

}  // namespace
}  // namespace muster::rendezvous

// Nodes whose check (--node_check) runs or has failed: they are known, and have no place.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/round_decision.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeChecks : public ::testing::Test {
 protected:
  void Begin(RendezvousSettings settings) { job_.emplace(settings); }
  void Check(int n, const std::string& failure = "") {
    job_->Report(n).check = CheckState{.failure = failure};
    job_->Join(n);
  }
  void Pass(int n) {
    job_->Report(n).check.reset();
    job_->Join(n);
  }
  void TearDown() override { EXPECT_EQ(job_->broken, ""); }

  std::optional<CoreUnderTest> job_;
};

TEST_F(NodeChecks, ANodeThatIsCheckedGetsNoPlaceUntilItPasses) {
  Begin(Settings(2, 2));
  job_->Join(1);
  Check(2);
  EXPECT_EQ(job_->state().phase, JobPhase::kForming);
  Pass(2);
  EXPECT_EQ(job_->state().phase, JobPhase::kRunning);
}

TEST_F(NodeChecks, ASpareTakesThePlaceOfANodeThatFails) {
  Begin(Settings(2, 2, 3));
  Check(1, "GPU 3 is gone");
  job_->Join(2);
  job_->Join(3);
  EXPECT_THAT(job_->state().members, ElementsAre(Incarnation(2), Incarnation(3)));
}

TEST_F(NodeChecks, TheTextOfTheJobNamesWhoFailsAndWhy) {
  Begin(Settings(2, 2));
  job_->Join(1);
  Check(2, "GPU 3 is gone");
  ASSERT_NE(job_->Told<Wait>(2), nullptr);
  EXPECT_EQ(job_->Told<Wait>(2)->text,
            "waiting for 1 more of 2 nodes; node2 does not pass its check: GPU 3 is gone");
  job_->Advance(601, {1, 2});
  ASSERT_TRUE(job_->state().outcome.has_value());
  EXPECT_THAT(job_->state().outcome->reason,
              HasSubstr("; node2 does not pass its check: GPU 3 is gone. Start the missing"));
}

TEST_F(NodeChecks, TheFailureOfACheckEndsNoRoundAndCostsNoRestart) {
  Begin(Settings(2, 3, 3));
  job_->RunWith(3);
  job_->Fail(3);
  for (const int n : {1, 2}) job_->Join(n);
  Check(3);
  const int used = job_->state().restarts_used;
  Check(3, "GPU 3 is gone");
  ASSERT_EQ(job_->state().phase, JobPhase::kRunning);
  const Round round = job_->state().round;
  for (int i = 0; i < 100; ++i) {
    job_->now = job_->now + absl::Seconds(2);
    for (const int n : {1, 2}) job_->SendPhase(n, AgentPhase::kRunning);
    Check(3, "GPU 3 is gone");
  }
  EXPECT_EQ(job_->state().phase, JobPhase::kRunning);
  EXPECT_EQ(job_->state().round, round);
  EXPECT_EQ(job_->state().restarts_used, used);
  EXPECT_EQ(job_->state().membership_changes, 0);
}

TEST_F(NodeChecks, TheOthersWaitForAMembersCheckAtMostForALastCall) {
  Begin(Settings(2, 3, 3));
  job_->RunWith(3);
  job_->Fail(3);
  Check(3);
  for (const int n : {1, 2}) job_->Join(n);
  EXPECT_EQ(job_->state().phase, JobPhase::kForming);
  EXPECT_THAT(DecideRound(job_->state(), job_->now).reason,
              HasSubstr("waiting for the check of node3, for 30s at most"));
  job_->Advance(29, {1, 2, 3});
  EXPECT_EQ(job_->state().phase, JobPhase::kForming);
  job_->Advance(1.1, {1, 2, 3});
  EXPECT_EQ(job_->state().phase, JobPhase::kRunning);
  EXPECT_THAT(job_->state().members, ElementsAre(Incarnation(1), Incarnation(2)));
}

// A timer that is set for the past would come again and again.
TEST_F(NodeChecks, NoDeadlineIsInThePastWhereTheNextRoundHasToWaitForLonger) {
  RendezvousSettings settings = Settings(2, 3, 9);
  settings.last_call_timeout = absl::Seconds(1);
  Begin(settings);
  job_->RunWith(3);
  for (int i = 0; i < 5; ++i) {  // rounds that end within ten seconds
    job_->Fail(1);
    for (const int n : {1, 2, 3}) job_->Join(n);
    for (int t = 0; t < 300 && job_->state().phase == JobPhase::kForming; ++t) {
      job_->Advance(1, {1, 2, 3});
    }
    ASSERT_EQ(job_->state().phase, JobPhase::kRunning);
    for (const int n : {1, 2, 3}) job_->SendPhase(n, AgentPhase::kRunning);
  }
  job_->Fail(3);
  Check(3);
  for (const int n : {1, 2}) job_->Join(n);
  job_->Advance(1.5, {1, 2, 3});
  ASSERT_EQ(job_->state().phase, JobPhase::kForming);
  EXPECT_GT(job_->NextDeadline(), job_->now);
}

TEST_F(NodeChecks, TheOthersGoOnAtOnceWhenAMembersCheckFails) {
  Begin(Settings(2, 3, 3));
  job_->RunWith(3);
  job_->Fail(3);
  Check(3);
  for (const int n : {1, 2}) job_->Join(n);
  Check(3, "GPU 3 is gone");
  EXPECT_EQ(job_->state().phase, JobPhase::kRunning);
}

TEST_F(NodeChecks, AMemberThatPassesInTimeKeepsItsRank) {
  Begin(Settings(2, 3, 3));
  job_->RunWith(3);
  job_->Fail(2);
  Check(2);
  for (const int n : {1, 3}) job_->Join(n);
  Pass(2);
  EXPECT_THAT(job_->state().members, ElementsAre(Incarnation(1), Incarnation(2), Incarnation(3)));
}

TEST_F(NodeChecks, ASpareThatIsCheckedLeavesNothingBehindWhenItIsLost) {
  Begin(Settings(1, 1));
  job_->RunWith(1);
  Check(2, "GPU 3 is gone");
  job_->Leave(2, {.reason = "node2 was told to end"});
  EXPECT_THAT(job_->state().outside.unfit, IsEmpty());
  EXPECT_EQ(job_->state().phase, JobPhase::kRunning);
}

TEST_F(NodeChecks, AStaticJobNamesTheRankThatIsMissingForItsCheck) {
  Begin(StaticSettings(2));
  job_->Join(1);
  Check(2, "GPU 3 is gone");
  ASSERT_NE(job_->Told<Wait>(2), nullptr);
  EXPECT_THAT(job_->Told<Wait>(2)->text,
              HasSubstr("node rank 1); node2 does not pass its check: GPU 3 is gone"));
}

}  // namespace
}  // namespace muster::rendezvous

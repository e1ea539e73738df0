#include "agent/core/node_ending.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::SizeIs;

TEST(NodeEnding, IsOpenUntilTheNodeDepartsOrTheJobEnds) {
  NodeEnding left, ended;
  EXPECT_TRUE(left.is_open());
  left.Depart({.reason = "node1 left"});
  EXPECT_FALSE(left.is_open());
  EXPECT_TRUE(left.is_leaving());
  EXPECT_FALSE(left.has_outcome());
  ended.End({.exit_code = 0, .reason = "done"});
  EXPECT_FALSE(ended.is_open());
  EXPECT_FALSE(ended.is_leaving());
  EXPECT_EQ(ended.outcome().reason, "done");
}

TEST(NodeEnding, HasTheExitCodeOfADepartureOfItsSignalOrOfAFailure) {
  NodeEnding ending;
  ending.Depart({.signal = SIGTERM, .reason = "told to end", .exit_code = 3});
  EXPECT_EQ(ending.OutcomeOfDeparture().exit_code, 3);
  ending.Depart({.signal = SIGTERM, .reason = "told to end"});
  EXPECT_EQ(ending.OutcomeOfDeparture().exit_code, 128 + SIGTERM);
  ending.Depart({.reason = "the guardian is gone"});
  EXPECT_EQ(ending.OutcomeOfDeparture().exit_code, kExitFailure);
  EXPECT_EQ(ending.OutcomeOfDeparture().reason, "the guardian is gone");
}

TEST(NodeEnding, EndsAsItWasToldLastWhereTheServerIsGone) {
  AgentCoreOptions options;
  options.server = "the rendezvous at node1:29400";
  WorkerGroup workers;
  workers.Begin(TwoWorkers());
  workers.NoteFailure({.exit_code = 5}, MonoTime::At(absl::Seconds(9)));
  NodeEnding ending;
  EXPECT_FALSE(ending.is_job_failed());
  ending.NoteJobFailed(
      StopRound{.cause = StopCause::kJobFailed, .reason = "no restarts are left", .exit_code = 5});
  EXPECT_TRUE(ending.is_job_failed());
  EXPECT_TRUE(ending.is_open()) << "the outcome is still to come";
  const JobOutcome outcome = ending.OutcomeAsTold("is lost", options, workers);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.reason, "no restarts are left; the rendezvous at node1:29400 is lost");
  EXPECT_THAT(outcome.failures, SizeIs(1));
  ending.NoteJobFailed(std::nullopt);
  EXPECT_FALSE(ending.is_job_failed()) << "a restart after all";
}

TEST(NodeEnding, EndsWithoutAServerAsItsOwnWorkersFailed) {
  AgentCoreOptions options;
  options.server = "the rendezvous at node1:29400";
  EXPECT_EQ(NodeEnding::OutcomeOfNoAnswer("", options).exit_code, kExitNodesMissing);
  WorkerGroup workers;
  workers.Begin(TwoWorkers());
  EXPECT_EQ(NodeEnding::OutcomeWithoutServer("silent", options, workers).exit_code,
            kExitServerLost);
  workers.NoteFailure({.exit_code = 5}, MonoTime::At(absl::Seconds(9)));
  const JobOutcome outcome = NodeEnding::OutcomeWithoutServer("silent", options, workers);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_TRUE(outcome.root_cause);
}

TEST(NodeEnding, TellsThoseWhoAwaitARoundWhyNoneFollows) {
  NodeEnding ending;
  EXPECT_EQ(ending.WhyNoRoundFollows(After::kJoin), "the job starts over");
  ending.End({.reason = "done"});
  EXPECT_EQ(ending.WhyNoRoundFollows(After::kFinish), "done");
  ending.Depart({.reason = "node1 left"});
  EXPECT_EQ(ending.WhyNoRoundFollows(After::kLeave), "node1 left");
  EXPECT_EQ(ending.WhyNoRoundFollows(After::kFinish), "done");
}

}  // namespace
}  // namespace muster::agent

#include "worker_runtime/train/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>

namespace muster::train {
namespace {

TEST(DecideAfterFailure, AsksForAnotherRoundWhenPeersMayBeGone) {
  for (const absl::Status& failure :
       {absl::AbortedError("the round is over"), absl::UnavailableError("rank 2 died"),
        absl::DeadlineExceededError("rank 2 is late")}) {
    EXPECT_EQ(DecideAfterFailure(true, failure, 0), AfterFailure::kAskForRound);
  }
}

TEST(DecideAfterFailure, AsksForAnotherRoundWhenItsLastCheckpointWasRefusedForGood) {
  EXPECT_EQ(DecideAfterFailure(true, absl::CancelledError("another round has begun"), 0),
            AfterFailure::kAskForRound);
}

TEST(DecideAfterFailure, EndsUnlessItWasToldToSurvive) {
  EXPECT_EQ(DecideAfterFailure(false, absl::AbortedError("the round is over"), 0),
            AfterFailure::kEnd);
  EXPECT_EQ(DecideAfterFailure(false, absl::AbortedError("the round is over"), SIGTERM),
            AfterFailure::kEnd);
}

TEST(DecideAfterFailure, EndsWithAFailureOfItsOwn) {
  for (const absl::Status& failure :
       {absl::FailedPreconditionError("the loss is not finite"),
        absl::InvalidArgumentError("no file a"), absl::ResourceExhaustedError("no space"),
        absl::DataLossError("rank 1 differs"), absl::InternalError("a bug")}) {
    EXPECT_EQ(DecideAfterFailure(true, failure, 0), AfterFailure::kEnd) << failure;
    EXPECT_EQ(DecideAfterFailure(true, failure, SIGTERM), AfterFailure::kEnd) << failure;
  }
}

TEST(DecideAfterFailure, ObeysASignalThatCameBeforeThePeersWereLost) {
  EXPECT_EQ(DecideAfterFailure(true, absl::AbortedError("the round is over"), SIGINT),
            AfterFailure::kEndBySignal);
}

TEST(FailureToSay, IsTheFirstUnlessTheJobHasARefusalForThisProcess) {
  const absl::Status failure = absl::UnavailableError("rank 2 died");
  const absl::Status refusal = absl::CancelledError("the job ends");
  EXPECT_EQ(FailureToSay(failure, refusal), refusal);
  for (const absl::Status& no_round :
       {absl::DeadlineExceededError("nobody knows of a round"), absl::UnavailableError("no agent"),
        absl::FailedPreconditionError("no SurviveRounds")}) {
    EXPECT_EQ(FailureToSay(failure, no_round), failure);
  }
}

TEST(TrainingSoFar, CountsTheStepsThatAreMadeAgain) {
  TrainingSoFar so_far;
  so_far.GoOnAfter(10);  // from a checkpoint, at the first start
  EXPECT_EQ(so_far.repeated_steps, 0);
  for (int64_t step = 11; step <= 15; ++step) so_far.history.Add(step, 1);
  so_far.last_step = 15;
  so_far.GoOnAfter(16);  // another rank had made one more
  EXPECT_EQ(so_far.repeated_steps, 0);
  EXPECT_EQ(so_far.history.points().size(), 5u);
  so_far.GoOnAfter(12);  // nobody had the state
  EXPECT_EQ(so_far.repeated_steps, 4);
  EXPECT_EQ(so_far.history.points().size(), 2u);
}

}  // namespace
}  // namespace muster::train

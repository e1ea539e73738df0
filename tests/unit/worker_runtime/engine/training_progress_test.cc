#include "worker_runtime/engine/training_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace muster::engine {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr LossScaling kScaling = {.kind = LossScaling::Kind::kTorch, .initial = 1024};

TEST(TrainingProgress, IsReadAsItWasSaved) {
  TrainingProgress saved(kScaling);
  saved.step = 7;
  saved.skipped_steps = 2;
  saved.scaler.Judge(/*overflow=*/true);
  TrainingProgress fresh(kScaling);
  fresh.is_torn = true;
  const auto read = fresh.Read(saved.Save(), "the checkpoint");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->step, 7);
  EXPECT_EQ(read->skipped_steps, 2);
  EXPECT_EQ(read->updates(), 5);
  EXPECT_EQ(read->scaler.scale(), saved.scaler.scale());
  EXPECT_NE(read->scaler.scale(), fresh.scaler.scale());
  EXPECT_FALSE(read->is_torn);
}

// An older version has saved it.
TEST(TrainingProgress, SkippedNoneWhereNoneIsSaid) {
  TrainingProgress progress{LossScaling()};
  progress.skipped_steps = 3;
  const auto read = progress.Read({.step = 5}, "the checkpoint");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->updates(), 5);
}

TEST(TrainingProgress, RefusesCountersThatAreNone) {
  const TrainingProgress progress{LossScaling()};
  for (const char* skipped : {"-1", "6", "two", ""}) {
    SCOPED_TRACE(skipped);
    const auto read =
        progress.Read({.step = 5, .counters = {{"skipped_steps", skipped}}}, "the checkpoint x");
    EXPECT_THAT(read, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr("the checkpoint x is damaged: skipped_steps is '"));
  }
}

}  // namespace
}  // namespace muster::engine

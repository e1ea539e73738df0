#include <gtest/gtest.h>

#include "muster/plan.h"

namespace muster {
namespace {

using Kind = LearningRateSchedule::Kind;

TEST(LearningRate, StaysAtItsPeakWhenConstant) {
  const LearningRateSchedule schedule = {.peak = 0.1};
  EXPECT_EQ(LearningRate(schedule, 0), 0.1);
  EXPECT_EQ(LearningRate(schedule, 1'000'000), 0.1);
}

TEST(LearningRate, RisesInEqualStepsToThePeakOverTheWarmUp) {
  const LearningRateSchedule schedule = {.peak = 1, .warmup_steps = 4};
  EXPECT_EQ(LearningRate(schedule, 0), 0.25);
  EXPECT_EQ(LearningRate(schedule, 2), 0.75);
  EXPECT_EQ(LearningRate(schedule, 3), 1);
  EXPECT_EQ(LearningRate(schedule, 4), 1);
}

TEST(LearningRate, FallsInAStraightLineToItsFloorAndStaysThere) {
  const LearningRateSchedule schedule = {
      .kind = Kind::kLinear, .peak = 1, .floor = 0.5, .warmup_steps = 2, .total_steps = 6};
  EXPECT_EQ(LearningRate(schedule, 2), 1);
  EXPECT_EQ(LearningRate(schedule, 3), 0.875);
  EXPECT_EQ(LearningRate(schedule, 5), 0.625);
  EXPECT_EQ(LearningRate(schedule, 6), 0.5);
  EXPECT_EQ(LearningRate(schedule, 60), 0.5);
}

TEST(LearningRate, FallsAsHalfACosine) {
  const LearningRateSchedule schedule = {
      .kind = Kind::kCosine, .peak = 3, .floor = 1, .warmup_steps = 10, .total_steps = 50};
  EXPECT_EQ(LearningRate(schedule, 10), 3);
  EXPECT_NEAR(LearningRate(schedule, 20), 2 + 0.70710678118654752, 1e-12);
  EXPECT_NEAR(LearningRate(schedule, 30), 2, 1e-12);
  EXPECT_EQ(LearningRate(schedule, 50), 1);
  EXPECT_EQ(LearningRate(schedule, 51), 1);
}

}  // namespace
}  // namespace muster

#include "worker_runtime/plan/stage_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan PlanWith(const std::string& schedule, int64_t micro_batches) {
  Plan plan;
  plan.stages = 0;
  plan.schedule = schedule;
  plan.accumulation = micro_batches;
  return plan;
}

TEST(ScheduleOf, IsThePlansOrOneForwardOneBackwardOfOneRank) {
  EXPECT_EQ(ScheduleOf(PlanWith("interleaved", 4), 2)->num_stages(), 4);
  EXPECT_EQ(ScheduleOf(PlanWith("zbv", 4), 1)->num_stages(), 1);
  EXPECT_EQ(ScheduleOf(PlanWith("gpipe", 3), 1)->name, "1f1b");
  Plan plan = PlanWith("gpipe", 4);
  plan.stages_per_rank = 2;
  EXPECT_THAT(ScheduleOf(plan, 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("interleaved has several")));
  EXPECT_THAT(ScheduleOf(PlanWith("interleaved", 5), 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the nearest")));
}

TEST(ScheduleOf, IsTheOneWhoseTextThePlanHas) {
  const Schedule turns =
      *MakeSchedule("interleaved", {.ranks = 2, .stages_per_rank = 2, .micro_batches = 4});
  Plan plan = PlanWith(FormatSchedule(turns), 4);
  EXPECT_EQ(*ScheduleOf(plan, 2), turns);
  EXPECT_EQ(StagesOver(plan, 2), 4);
  EXPECT_FALSE(SplitsBackward(plan));
  EXPECT_EQ(ScheduleOf(plan, 1)->num_stages(), 1);
  EXPECT_THAT(
      ScheduleOf(plan, 4).status().message(),
      HasSubstr("schedule interleaved is for 2 ranks, and the pipeline has 4; give --stages=2"));
  plan.accumulation = 5;
  EXPECT_THAT(
      ScheduleOf(plan, 2).status().message(),
      HasSubstr(
          "schedule interleaved is for 4 micro-batches, and a step has 5; give --accumulation=4"));
  plan = PlanWith(FormatSchedule(*MakeSchedule("zb-h1", {.ranks = 2, .micro_batches = 4})), 4);
  EXPECT_TRUE(SplitsBackward(plan));
  plan.stages_per_rank = 2;
  EXPECT_THAT(ScheduleOf(plan, 2).status().message(),
              HasSubstr("schedule zb-h1: rank 0 has 1 stage, and --stages_per_rank is 2; leave"));
}

TEST(ScheduleOf, RefusesTextsOfSchedulesThatCannotRun) {
  const auto refusal = [](const std::string& text) {
    return std::string(ScheduleOf(PlanWith(text, 1), 2).status().message());
  };
  EXPECT_THAT(refusal("schedule mine\nmicro_batches 1\n"), HasSubstr("stages_on_ranks"));
  EXPECT_THAT(refusal("schedule mine\nmicro_batches 1\nstages_on_ranks 0 1\n"
                      "rank 0: B0.0 F0.0\nrank 1: F1.0 B1.0\n"),
              HasSubstr("B0.0"))
      << "it would hang";
}

// Files may give a rank more stages than another.
TEST(ScheduleOf, TakesTextsWhoseRanksHaveUnequalNumbersOfStages) {
  Plan plan = PlanWith(
      "schedule mine\nmicro_batches 1\nstages_on_ranks 0 1 1\n"
      "rank 0: F0.0 B0.0\nrank 1: F1.0 F2.0 B2.0 B1.0\n",
      1);
  const absl::StatusOr<Schedule> schedule = ScheduleOf(plan, 2);
  ASSERT_THAT(schedule, testing::IsOk());
  EXPECT_THAT(StagesAt(*schedule, 1), ElementsAre(1, 2));
  EXPECT_EQ(StagesOver(plan, 2), 3);
  EXPECT_EQ(RanksOf(plan, 3), 2);
  EXPECT_EQ(StagesPerRank(plan), 2);
  EXPECT_EQ(StagesOver(plan, 1), 1);
  plan.stages_per_rank = 2;
  EXPECT_THAT(ScheduleOf(plan, 2).status().message(),
              HasSubstr("schedule mine: rank 0 has 1 stage, and --stages_per_rank is 2"));
}

}  // namespace
}  // namespace muster::plan

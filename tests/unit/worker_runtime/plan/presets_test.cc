#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/plan.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanPreset, IsReplicatedThroughoutForDdp) {
  const absl::StatusOr<Plan> plan = PlanPreset("ddp");
  ASSERT_THAT(plan, IsOk());
  for (const StatePlan& state : {plan->parameters, plan->gradients, plan->optimizer}) {
    EXPECT_EQ(state, (StatePlan{Placement::kReplicate, Residency::kDevice}));
  }
  EXPECT_FALSE(plan->reshard_after_forward);
}

TEST(PlanPreset, IsTheSamePlanUnderEachOfItsNames) {
  const absl::StatusOr<Plan> ddp = PlanPreset("ddp");
  ASSERT_THAT(ddp, IsOk());
  for (const char* name :
       {"DDP", "no_shard", "NO_SHARD", "no-shard", "zero-0", "zero0", "zero_0"}) {
    EXPECT_THAT(PlanPreset(name), IsOkAndHolds(*ddp)) << name;
  }
}

TEST(PlanPreset, ShardsTheOptimizerAloneForZeroOne) {
  const absl::StatusOr<Plan> plan = PlanPreset("ZeRO_1");
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->optimizer.placement, Placement::kShard);
  EXPECT_EQ(plan->gradients, StatePlan{});
  EXPECT_EQ(plan->parameters, StatePlan{});
}

TEST(PlanPreset, OffersOnlyNamesThatItTakesAndThatAreValid) {
  ASSERT_FALSE(PlanPresetNames().empty());
  for (const std::string& name : PlanPresetNames()) {
    const absl::StatusOr<Plan> plan = PlanPreset(name);
    ASSERT_THAT(plan, IsOk());
    EXPECT_THAT(plan->Validate(), IsOk());
    EXPECT_EQ(plan->preset, name);
  }
}

TEST(PlanPreset, SaysThatANameOfALaterVersionIsNotThereYet) {
  for (const char* name : {"ZeRO-2", "zero3", "fsdp", "FULL_SHARD", "shard_grad_op", "hybrid_shard",
                           "_HYBRID_SHARD_ZERO2", "hsdp", "mics"}) {
    EXPECT_THAT(PlanPreset(name),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("not in this version"), HasSubstr("ddp"))))
        << name;
  }
}

TEST(PlanPreset, NamesTheNearestOfAnUnknownName) {
  EXPECT_THAT(PlanPreset("dpp"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean ddp?")));
  EXPECT_THAT(PlanPreset("ful_shard"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean full_shard?")));
}

TEST(PlanPreset, OffersWhatThereIsForANameNearNone) {
  EXPECT_THAT(PlanPreset("tensor-parallel\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'tensor-parallel\\n' is not a known plan; expected ddp"),
                             Not(HasSubstr("did you mean")))));
  EXPECT_THAT(PlanPreset(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace muster

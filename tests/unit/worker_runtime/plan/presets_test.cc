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
  EXPECT_FALSE(plan->gathering.reshard_after_forward);
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

// Source: the table of placements that the peers' documentation agrees on.
TEST(PlanPreset, ShardsWhatThePeersShardUnderTheirNames) {
  struct Row {
    const char* name;
    bool parameters, gradients, optimizer, reshard, hybrid;
  };
  for (const Row& row : {Row{"ZeRO-2", false, true, true, false, false},
                         {"zero3", true, true, true, true, false},
                         {"fsdp", true, true, true, true, false},
                         {"FULL_SHARD", true, true, true, true, false},
                         {"fsdp:full_shard", true, true, true, true, false},
                         {"fsdp2", true, true, true, true, false},
                         {"SHARD_GRAD_OP", true, true, true, false, false},
                         {"fsdp:no_shard", false, false, false, false, false},
                         {"HYBRID_SHARD", true, true, true, true, true},
                         {"hsdp", true, true, true, true, true},
                         {"_HYBRID_SHARD_ZERO2", true, true, true, false, true},
                         {"mics", true, true, true, true, true},
                         {"hpz", true, true, true, true, false}}) {
    const absl::StatusOr<Plan> plan = PlanPreset(row.name);
    ASSERT_THAT(plan, IsOk()) << row.name;
    const auto is_sharded = [](const StatePlan& state) {
      return state.placement == Placement::kShard;
    };
    EXPECT_EQ(is_sharded(plan->parameters), row.parameters) << row.name;
    EXPECT_EQ(is_sharded(plan->gradients), row.gradients) << row.name;
    EXPECT_EQ(is_sharded(plan->optimizer), row.optimizer) << row.name;
    EXPECT_EQ(plan->gathering.reshard_after_forward, row.reshard) << row.name;
    EXPECT_EQ(plan->shard_ranks == Plan::kRanksOfNode, row.hybrid) << row.name;
  }
}

// Source: DeepSpeed's configuration, "ZeRO Optimizations": the defaults of its stage3 keys.
TEST(PlanPreset, GathersForZeroThreeAsDeepSpeedDoes) {
  const GatherPlan gathering = PlanPreset("zero-3")->gathering;
  EXPECT_EQ(gathering.prefetch_elements, 50'000'000);
  EXPECT_EQ(gathering.max_live_elements, 1'000'000'000);
  EXPECT_EQ(gathering.max_reuse_distance, 1'000'000'000);
  EXPECT_EQ(gathering.persistence_threshold, 100'000);
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

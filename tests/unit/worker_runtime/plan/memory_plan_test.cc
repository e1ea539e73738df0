#include "worker_runtime/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/gpt_activations.h"
#include "worker_runtime/plan/wire_plan.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr GptConfig kModel = {.layers = 2, .heads = 2, .hidden_size = 64, .context = 32};

Plan PlanOf(SumMode mode, int64_t accumulation) {
  Plan plan;
  plan.mode = mode;
  plan.accumulation = accumulation;
  return plan;
}

MemoryPlan MemoryOf(const Plan& plan, const Workload& workload) {
  const absl::StatusOr<MemoryPlan> memory = PlanMemory(plan, kModel, workload);
  EXPECT_THAT(memory, IsOk());
  return memory.value_or(MemoryPlan());
}

TEST(PlanMemory, HoldsParametersGradientsAndTwoMomentsOnEveryRankOfDdp) {
  const MemoryPlan memory = MemoryOf(Plan(), {.world_size = 8, .batch_size = 3});
  const auto parameters = static_cast<double>(4 * kModel.num_parameters());
  EXPECT_NEAR(static_cast<double>(memory.parameters), parameters, 0.01 * parameters + 4096);
  EXPECT_EQ(memory.gradients, memory.parameters);
  EXPECT_EQ(memory.optimizer, 2 * memory.parameters);
  EXPECT_EQ(memory.partial_sums, 0);
  EXPECT_EQ(memory.activations, GptActivationBytes(kModel, {.batch = 3, .sequence = 32}));
  EXPECT_EQ(memory.total(), 4 * memory.parameters + memory.activations);
}

TEST(PlanMemory, DoublesWithTheSizeOfTheType) {
  const MemoryPlan f32 = MemoryOf(Plan(), {.dtype = DType::kF32});
  const MemoryPlan f64 = MemoryOf(Plan(), {.dtype = DType::kF64});
  EXPECT_EQ(f64.parameters, 2 * f32.parameters);
  EXPECT_EQ(f64.optimizer, 2 * f32.optimizer);
}

TEST(PlanMemory, AddsThePartialSumsOfOrderedModeOfTheRankThatHasMost) {
  EXPECT_EQ(MemoryOf(PlanOf(SumMode::kOrdered, 1), {.world_size = 3}).partial_sums, 0);
  const MemoryPlan eight = MemoryOf(PlanOf(SumMode::kOrdered, 8), {.world_size = 2});
  EXPECT_EQ(eight.partial_sums, 3 * eight.gradients);
  // Of 9 leaves a rank has 3: (0+1), 2 | 3, (4+5) | (6+7), 8.
  const MemoryPlan three = MemoryOf(PlanOf(SumMode::kOrdered, 3), {.world_size = 3});
  EXPECT_EQ(three.partial_sums, 2 * three.gradients);
}

TEST(PlanMemory, RefusesWhatNoMachineHas) {
  const GptConfig model = {.layers = 60'000, .heads = 1, .hidden_size = 1024, .context = 1 << 24};
  EXPECT_THAT(PlanMemory(Plan(), model, {.batch_size = 1 << 20}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes of activations")));
}

TEST(PlanMemory, RefusesPlacementsOfALaterVersion) {
  Plan plan;
  plan.optimizer.placement = Placement::kShard;
  EXPECT_THAT(PlanMemory(plan, kModel, {}), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST(PlanWire, SendsNothingAlone) {
  for (SumMode mode : {SumMode::kFast, SumMode::kOrdered}) {
    EXPECT_EQ(PlanWire(PlanOf(mode, 3), {.world_size = 1, .gradient_bytes = 1000}).total(), 0);
  }
}

TEST(PlanWire, IsTheRingsInFastMode) {
  const WirePlan wire =
      PlanWire(PlanOf(SumMode::kFast, 5), {.world_size = 4, .gradient_bytes = 4000});
  EXPECT_EQ(wire.gradients, 2 * 3 * 1000);
  EXPECT_EQ(wire.loss, 2 * 16);
}

TEST(PlanWire, IsTheSameInOrderedModeForPowersOfTwo) {
  for (int64_t accumulation : {1, 2, 8}) {
    const WireInput input = {.world_size = 8, .gradient_bytes = 8000};
    EXPECT_EQ(PlanWire(PlanOf(SumMode::kOrdered, accumulation), input).gradients,
              PlanWire(PlanOf(SumMode::kFast, accumulation), input).gradients);
  }
}

TEST(PlanWire, CountsEveryRootInOrderedMode) {
  // Of 6 leaves a rank has 3: (0+1), 2 | 3, (4+5).
  EXPECT_EQ(
      PlanWire(PlanOf(SumMode::kOrdered, 3), {.world_size = 2, .gradient_bytes = 1000}).gradients,
      3 * 500);
}

}  // namespace
}  // namespace muster::plan

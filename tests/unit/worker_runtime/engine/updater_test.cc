#include "worker_runtime/engine/updater.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::ActionsOf;
using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr LossSum kLoss = {.loss = 6, .num_tokens = 4};

struct Updated {
  explicit Updated(Communicator& world, const Plan& plan) : small(world, plan) {}

  // A step whose loss and gradients are those, from its numbers to its updates.
  absl::StatusOr<StepResult> Step(LossSum loss, float gradient) {
    Rig& rig = small.rig();
    StepResult result;
    result.learning_rate = updater.PutNumbers();
    rig.reduction->Begin();
    rig.reduction->AddLoss(0, loss, Tensor());
    small.FillGradients(gradient);
    updater.ComputeNorm({});
    updater.Decide();
    MUSTER_ASSIGN_OR_RETURN(const StepRecord record, updater.Read());
    MUSTER_RETURN_IF_ERROR(updater.Judge(record, result));
    if (result.skipped) return result;
    for (const int action : ActionsOf(rig.program, plan::ActionKind::kUpdate)) {
      updater.Update(rig.program.actions[action].As<plan::Update>().bucket);
    }
    return result;
  }
  float FirstValue() { return small.store.parameters()[0]->value().span<float>()[0]; }

  SmallRig small;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  Updater updater{small.rig(), progress};
};

Plan PlanOfSgd() {
  Plan plan = SmallPlan(SumMode::kOrdered, 1);
  plan.update = {.kind = UpdateRule::Kind::kSgd, .weight_decay = 0, .momentum = 0};
  plan.learning_rate = {.peak = 0.5};
  plan.max_gradient_norm = 0;
  return plan;
}

TEST(Updater, TakesAStepAgainstTheGradientAndSaysWhatItWas) {
  Alone([](Communicator& world) {
    Updated updated(world, PlanOfSgd());
    const float before = updated.FirstValue();
    const auto step = updated.Step(kLoss, 2);
    ASSERT_THAT(step, IsOk());
    EXPECT_EQ(step->step, 1);
    EXPECT_EQ(step->loss, 1.5);
    EXPECT_EQ(step->num_tokens, 4);
    EXPECT_EQ(step->learning_rate, 0.5);
    EXPECT_FALSE(step->skipped);
    const int64_t elements = updated.small.rig().held.all_summed_gradients().num_elements();
    EXPECT_NEAR(step->gradient_norm, std::sqrt(4.0 * elements) / 4, 1e-6 * elements);
    EXPECT_FLOAT_EQ(updated.FirstValue(), before - 0.5f * 2 / 4);
    EXPECT_EQ(updated.progress.step, 1);
  });
}

TEST(Updater, NamesTheParameterWhoseGradientIsNotFinite) {
  Alone([](Communicator& world) {
    Updated updated(world, PlanOfSgd());
    const float before = updated.FirstValue();
    const auto step = updated.Step(kLoss, std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(step, StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(std::string(step.status().message()),
                HasSubstr("step 1: the gradient is not finite, first in " +
                          updated.small.store.parameters()[0]->name()));
    EXPECT_EQ(updated.FirstValue(), before);
    EXPECT_EQ(updated.progress.step, 0);
  });
}

TEST(Updater, RefusesAStepWithoutATargetOrWithALossThatIsNoNumber) {
  Alone([](Communicator& world) {
    Updated updated(world, PlanOfSgd());
    EXPECT_THAT(std::string(updated.Step({}, 1).status().message()),
                HasSubstr("step 1: no target counted on any rank"));
    EXPECT_THAT(
        std::string(updated.Step({.loss = INFINITY, .num_tokens = 1}, 1).status().message()),
        HasSubstr("step 1: the loss of rank 0 is not finite"));
    EXPECT_EQ(updated.progress.step, 0);
  });
}

TEST(Updater, SkipsAStepThatOverflowsAndLowersTheScale) {
  Alone([](Communicator& world) {
    Plan plan = PlanOfSgd();
    plan.loss_scaling = {.kind = LossScaling::Kind::kTorch, .initial = 1024, .backoff = 0.5};
    Updated updated(world, plan);
    ASSERT_TRUE(updated.updater.scales_loss());
    const double seed = updated.updater.SeedOfBackward();
    const float before = updated.FirstValue();
    const auto step = updated.Step(kLoss, INFINITY);
    ASSERT_THAT(step, IsOk());
    EXPECT_TRUE(step->skipped);
    EXPECT_EQ(step->loss_scale, 1024);
    EXPECT_EQ(updated.FirstValue(), before);
    EXPECT_EQ(updated.progress.step, 1);
    EXPECT_EQ(updated.progress.updates(), 0);
    EXPECT_EQ(updated.progress.scaler.scale(), 512);
    EXPECT_EQ(updated.updater.SeedOfBackward(), seed / 2);
  });
}

}  // namespace
}  // namespace muster::engine

// What becomes of a gradient: loss scales and skipped steps, optimizers, groups, frozen parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "muster/engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan OrderedPlan(int64_t accumulation = 2) {
  Plan plan;
  plan.mode = SumMode::kOrdered;
  plan.accumulation = accumulation;
  plan.learning_rate = {.peak = 3e-3};
  return plan;
}

// Trains a model on `ranks` ranks; the gradient of the steps in `overflows` is not finite on the
// last rank.
struct Course {
  std::vector<StepResult> steps;
  std::vector<std::string> hashes;  // of the parameters, after each step
  absl::Status status;
};

Course Train(int ranks, const Plan& plan, int steps, const std::string& overflows = "") {
  return OnRanks<Course>(ranks, [&](Communicator& world) {
    Course run;
    auto training = SmallTraining::Create(world, plan);
    run.status = training.status();
    for (int i = 0; run.status.ok() && i < steps; ++i) {
      const bool overflow = i < static_cast<int>(overflows.size()) && overflows[i] == '1' &&
                            world.rank() == ranks - 1;
      (*training)->within_backward = [&] {
        if (!overflow) return;
        // What a layer in front of this one has written already.
        Parameter* head = (*training)->store().Find("ln_f.weight");
        head->gradient().data<float>()[0] = std::numeric_limits<float>::infinity();
      };
      const absl::StatusOr<StepResult> step = (*training)->Step();
      run.status = step.status();
      if (!step.ok()) break;
      run.steps.push_back(*step);
      run.hashes.push_back((*training)->engine().ParameterHash().value_or("none"));
    }
    return run;
  })[0];
}

std::vector<double> Scales(const Course& run) {
  std::vector<double> scales;
  for (const StepResult& step : run.steps) scales.push_back(step.loss_scale);
  return scales;
}

TEST(LossScale, OfAPowerOfTwoChangesNoBit) {
  Plan plan = OrderedPlan();
  const Course plain = Train(2, plan, 4);
  ASSERT_THAT(plain.status, IsOk());
  for (const LossScaling& scaling :
       {LossScaling::Static(1024), LossScaling::DeepSpeed(), LossScaling::Torch()}) {
    plan.loss_scaling = scaling;
    const Course run = Train(2, plan, 4);
    ASSERT_THAT(run.status, IsOk());
    EXPECT_EQ(run.hashes, plain.hashes);
    EXPECT_EQ(run.steps[3].gradient_norm, plain.steps[3].gradient_norm);
  }
}

TEST(LossScale, IsLoweredByAStepThatOverflowsOnOneRankAndSkipsItOnAll) {
  Plan plan = OrderedPlan();
  plan.loss_scaling = {.kind = LossScaling::Kind::kDeepSpeed, .window = 2, .hysteresis = 1};
  for (const Placement placement : {Placement::kReplicate, Placement::kShard}) {
    plan.optimizer.placement = placement;
    const Course run = Train(2, plan, 6, "011000");
    ASSERT_THAT(run.status, IsOk());
    EXPECT_THAT(Scales(run), ElementsAre(65536, 65536, 32768, 16384, 16384, 16384));
    EXPECT_EQ(run.hashes[1], run.hashes[0]);
    EXPECT_EQ(run.hashes[2], run.hashes[0]);
    EXPECT_NE(run.hashes[3], run.hashes[0]);
    EXPECT_TRUE(run.steps[1].skipped);
    EXPECT_FALSE(run.steps[3].skipped);
    EXPECT_EQ(run.steps[5].step, 6);
  }
}

// A skipped step consumes its batch, and the optimizer does not count it: what follows is what a
// training does that never saw that batch, but for the schedule, which is as each algorithm has it.
TEST(LossScale, LetsTheScheduleWaitAsDeepSpeedDoesOrGoOnAsPyTorchDoes) {
  Plan plan = OrderedPlan();
  plan.learning_rate = {.peak = 1, .warmup_steps = 10};
  plan.loss_scaling = LossScaling::DeepSpeed();
  const auto rates = [&] {
    const Course run = Train(1, plan, 4, "0100");
    EXPECT_THAT(run.status, IsOk());
    std::vector<double> taken;
    for (const StepResult& step : run.steps) {
      if (!step.skipped) taken.push_back(step.learning_rate);
    }
    return taken;
  };
  EXPECT_THAT(rates(), ElementsAre(0.1, 0.2, 0.3));
  plan.loss_scaling = LossScaling::Torch();
  EXPECT_THAT(rates(), ElementsAre(0.1, 0.3, 0.4));
}

TEST(LossScale, EndsTheTrainingAtItsMinimumAndNamesTheParameter) {
  Plan plan = OrderedPlan();
  plan.loss_scaling = {
      .kind = LossScaling::Kind::kDeepSpeed, .initial = 2, .hysteresis = 1, .minimum = 1};
  const Course run = Train(2, plan, 6, "0111");
  EXPECT_EQ(run.steps.size(), 2);
  EXPECT_THAT(run.status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("step 3: the gradient is not finite, first in ln_f.weight"),
                             HasSubstr("the loss scale, 1, is at its minimum already"))));
}

TEST(LossScale, GoesOnFromACheckpointAsIfItHadNeverStopped) {
  const TemporaryDirectory directory;
  Plan plan = OrderedPlan();
  plan.loss_scaling = {.kind = LossScaling::Kind::kDeepSpeed, .window = 3};
  plan.learning_rate = {.peak = 3e-3, .warmup_steps = 10};
  const auto run = [&](int first, int last, bool resume) {
    return OnRanks<Course>(2, [&](Communicator& world) {
      Course out;
      auto training = SmallTraining::Create(world, plan);
      out.status = training.status();
      if (resume) out.status.Update((*training)->engine().Load(directory.path()).status());
      for (int i = first; out.status.ok() && i < last; ++i) {
        (*training)->within_backward = [&, i] {
          Parameter* head = (*training)->store().Find("ln_f.weight");
          if (i == 0 || i == 1 || i == 5) head->gradient().data<float>()[0] = INFINITY;
        };
        const auto step = (*training)->Step();
        out.status.Update(step.status());
        if (step.ok()) out.steps.push_back(*step);
      }
      out.hashes = {(*training)->engine().ParameterHash().value_or("none")};
      if (out.status.ok() && last == 4) {
        out.status = (*training)->engine().Save(directory.path(), {});
      }
      return out;
    })[1];
  };
  const Course whole = run(0, 9, false);
  ASSERT_THAT(whole.status, IsOk());
  ASSERT_THAT(run(0, 4, false).status, IsOk());
  const Course rest = run(4, 9, true);
  ASSERT_THAT(rest.status, IsOk());
  EXPECT_EQ(rest.hashes, whole.hashes);
  const auto whole_scales = Scales(whole);
  EXPECT_EQ(Scales(rest), std::vector<double>(whole_scales.begin() + 4, whole_scales.end()));
  EXPECT_EQ(rest.steps.back().learning_rate, whole.steps.back().learning_rate);
}

TEST(UpdateRule, LearnsWithEveryRuleAndGivesTheSameBitsOnAnyNumberOfRanks) {
  for (const UpdateRule& rule :
       {UpdateRule{.kind = UpdateRule::Kind::kAdam, .weight_decay = 0.01},
        UpdateRule{.kind = UpdateRule::Kind::kSgd, .weight_decay = 0.01},
        UpdateRule{.kind = UpdateRule::Kind::kSgd, .momentum = 0.9},
        UpdateRule{.kind = UpdateRule::Kind::kSgd, .momentum = 0.9, .nesterov = true}}) {
    Plan plan = OrderedPlan(4);
    plan.update = rule;
    if (rule.kind == UpdateRule::Kind::kSgd) plan.learning_rate.peak = 0.3;
    const Course one = Train(1, plan, 12);
    ASSERT_THAT(one.status, IsOk());
    EXPECT_LT(one.steps.back().loss, one.steps.front().loss - 0.2) << ToString(rule.kind);
    plan.accumulation = 2;
    plan.optimizer.placement = Placement::kShard;
    EXPECT_EQ(Train(2, plan, 12).hashes, one.hashes) << ToString(rule.kind);
  }
}

TEST(UpdateRule, HoldsNoMoreMomentsThanItNeeds) {
  for (const auto& [rule, moments] : std::vector<std::pair<UpdateRule, int>>{
           {{}, 2},
           {{.kind = UpdateRule::Kind::kSgd, .momentum = 0.5}, 1},
           {{.kind = UpdateRule::Kind::kSgd}, 0}}) {
    Plan plan = OrderedPlan();
    plan.update = rule;
    const auto held = OnRanks<EngineMemory>(1, [&](Communicator& world) {
      return (*SmallTraining::Create(world, plan))->engine().memory();
    })[0];
    EXPECT_EQ(held.optimizer, moments * held.parameters);
  }
}

TEST(UpdateRule, SavesItsMomentsAndRefusesThoseOfAnother) {
  const TemporaryDirectory directory;
  Plan plan = OrderedPlan();
  plan.update = {.kind = UpdateRule::Kind::kSgd, .momentum = 0.9};
  plan.learning_rate.peak = 0.1;
  plan.optimizer.placement = Placement::kShard;
  const auto run = [&](const Plan& with, bool resume, int steps) {
    return OnRanks<Course>(2, [&](Communicator& world) {
      Course out;
      auto training = SmallTraining::Create(world, with);
      if (resume) out.status = (*training)->engine().Load(directory.path()).status();
      if (out.status.ok()) out.status = (*training)->Steps(steps).status();
      if (out.status.ok() && steps == 2) {
        out.status = (*training)->engine().Save(directory.path(), {});
      }
      out.hashes = {(*training)->engine().ParameterHash().value_or("none")};
      return out;
    })[0];
  };
  const Course whole = run(plan, false, 4);
  ASSERT_THAT(run(plan, false, 2).status, IsOk());
  const Course rest = run(plan, true, 2);
  ASSERT_THAT(rest.status, IsOk());
  EXPECT_EQ(rest.hashes, whole.hashes);
  EXPECT_THAT(run(OrderedPlan(), true, 1).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("it has no first_moment.wte.weight, which adamw needs")));
}

// Values of the parameters after some steps, by name.
std::map<std::string, std::vector<float>> ValuesAfter(int ranks, const Plan& plan, int steps) {
  using Values = std::map<std::string, std::vector<float>>;
  return OnRanks<Values>(ranks, [&](Communicator& world) {
    Values values;
    auto training = SmallTraining::Create(world, plan);
    EXPECT_THAT(training.status(), IsOk());
    EXPECT_THAT((*training)->Steps(steps), IsOk());
    for (const auto& parameter : (*training)->store().parameters()) {
      const auto span = parameter->value().span<float>();
      values[parameter->name()] = {span.begin(), span.end()};
    }
    return values;
  })[0];
}

TEST(ParameterGroup, HasItsOwnLearningRateAndDecay) {
  Plan plan = OrderedPlan();
  plan.groups = {{.parameters = "wpe.*", .learning_rate_scale = 0},
                 {.parameters = "h.0.*", .learning_rate_scale = 2, .weight_decay = 0}};
  const auto start = ValuesAfter(1, plan, 0);
  const auto after = ValuesAfter(1, plan, 1);
  EXPECT_EQ(after.at("wpe.weight"), start.at("wpe.weight"));
  // A first step of AdamW moves every element by the learning rate, but for the decay.
  const auto moved = [&](const std::string& name) {
    return std::abs(after.at(name)[5] - start.at(name)[5]);
  };
  EXPECT_NEAR(moved("h.0.ln_1.weight"), 6e-3, 1e-4);
  EXPECT_NEAR(moved("h.1.ln_1.weight"), 3e-3, 1e-4);
}

TEST(FrozenParameters, StayAsTheyAreAndTakeNoGradientNoStateAndNoBytes) {
  Plan plan = OrderedPlan();
  for (const Placement placement : {Placement::kReplicate, Placement::kShard}) {
    plan.optimizer.placement = placement;
    plan.groups = {};
    const auto plain = OnRanks<EngineMemory>(2, [&](Communicator& world) {
      return (*SmallTraining::Create(world, plan))->engine().memory();
    })[0];
    plan.groups = {{.parameters = "h.*", .frozen = true}, {.parameters = "*.bias", .frozen = true}};
    const auto start = ValuesAfter(2, plan, 0);
    const auto after = ValuesAfter(2, plan, 3);
    for (const auto& [name, values] : after) {
      const bool frozen = absl::StartsWith(name, "h.") || absl::EndsWith(name, ".bias");
      EXPECT_EQ(values == start.at(name), frozen) << name;
    }
    struct Cost {
      EngineMemory memory;
      int64_t sent = 0;
    };
    const auto cost = OnRanks<Cost>(2, [&](Communicator& world) {
      auto training = SmallTraining::Create(world, plan);
      EXPECT_THAT((*training)->Step(), IsOk());
      const int64_t before = world.bytes_sent();
      EXPECT_THAT((*training)->Step(), IsOk());
      return Cost{(*training)->engine().memory(), world.bytes_sent() - before};
    })[0];
    // What learns are two tables and a norm: three blocks, of about thirty.
    EXPECT_LT(cost.memory.gradients * 8, plain.gradients);
    EXPECT_LT(cost.memory.optimizer * 6, plain.optimizer);
    EXPECT_LE(cost.memory.parameters, plain.parameters + 4096);
    EXPECT_LT(cost.sent, plain.gradients / 4);
  }
}

TEST(FrozenParameters, LeaveTheGradientsOfTheOthersAsTheyWere) {
  Plan plan = OrderedPlan();
  plan.max_gradient_norm = 0;
  plan.update = {.kind = UpdateRule::Kind::kSgd, .weight_decay = 0};
  const auto free = ValuesAfter(2, plan, 1);
  plan.groups = {{.parameters = "h.0.*.weight", .frozen = true},
                 {.parameters = "h.1.*.bias", .frozen = true},
                 {.parameters = "wpe.*", .frozen = true}};
  const auto frozen = ValuesAfter(2, plan, 1);
  int compared = 0;
  const auto start = ValuesAfter(2, plan, 0);
  for (const auto& [name, values] : frozen) {
    if (values == start.at(name)) continue;
    EXPECT_EQ(values, free.at(name)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 15);
}

TEST(FrozenParameters, MayBeFrozenInAModelThatWasTrainedWithoutAndNotTheOtherWayRound) {
  const TemporaryDirectory directory;
  Plan frozen = OrderedPlan();
  frozen.groups = {{.parameters = "wte.*", .frozen = true}};
  const auto run = [&](const Plan& plan, bool resume) {
    return OnRanks<absl::Status>(2, [&](Communicator& world) {
      auto training = SmallTraining::Create(world, plan);
      absl::Status status = training.status();
      if (resume) status.Update((*training)->engine().Load(directory.path()).status());
      if (status.ok()) status = (*training)->Steps(1).status();
      if (status.ok()) status = (*training)->engine().Save(directory.path(), {});
      return status;
    });
  };
  EXPECT_THAT(run(OrderedPlan(), false), Each(IsOk()));
  EXPECT_THAT(run(frozen, true), Each(IsOk()));
  EXPECT_THAT(run(OrderedPlan(), true),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("it has no first_moment.wte.weight, which adamw needs; was "
                                      "wte.weight frozen there"))));
}

TEST(FrozenParameters, OfAPatternThatFitsNothingAreRefusedOnEveryRank) {
  Plan plan = OrderedPlan();
  plan.groups = {{.parameters = "wtf.*", .frozen = true}};
  EXPECT_THAT(
      OnRanks<absl::Status>(
          2, [&](Communicator& world) { return SmallTraining::Create(world, plan).status(); }),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr("groups.0.parameters 'wtf.*' fits no parameter"))));
}

}  // namespace
}  // namespace muster::testing

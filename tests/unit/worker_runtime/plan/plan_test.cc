#include "muster/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

using Kind = LearningRateSchedule::Kind;
using Change = std::function<void(Plan&)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

Plan PlanWith(const Change& change) {
  Plan plan;
  change(plan);
  return plan;
}

std::map<std::string, std::string> MapOf(const Plan& plan) {
  const PlanText text = Describe(plan);
  return {text.begin(), text.end()};
}

void ExpectRefused(const Change& change, const std::string& message) {
  EXPECT_THAT(PlanWith(change).Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(PlanValidate, AcceptsTheDefaults) { EXPECT_THAT(Plan().Validate(), IsOk()); }

TEST(PlanValidate, TakesTheTextOfAScheduleOrSaysTheLineThatIsWrong) {
  const auto change = [](const std::string& stages) {
    return [stages](Plan& p) {
      p.stages = 2;
      p.schedule = absl::StrCat("schedule mine\nmicro_batches 1\nstages_on_ranks ", stages,
                                "\nrank 0: F0.0 B0.0\nrank 1: F1.0 B1.0\n");
    };
  };
  EXPECT_THAT(PlanWith(change("0 1")).Validate(), IsOk());
  EXPECT_EQ(MapOf(PlanWith(change("0 1")))["schedule"],
            "schedule mine; micro_batches 1; stages_on_ranks 0 1; rank 0: F0.0 B0.0; "
            "rank 1: F1.0 B1.0");
  ExpectRefused(change("0 one"), "schedule: line 3: 'one' is not the number of a rank");
}

TEST(PlanValidate, RefusesNumbersThatAreNoneByTheirField) {
  for (const double bad : {kNaN, kInfinity, -kInfinity}) {
    ExpectRefused([&](Plan& p) { p.update.beta1 = bad; }, "update.beta1 must be");
    ExpectRefused([&](Plan& p) { p.update.beta2 = bad; }, "update.beta2 must be");
    ExpectRefused([&](Plan& p) { p.update.epsilon = bad; }, "update.epsilon must be");
    ExpectRefused([&](Plan& p) { p.update.weight_decay = bad; }, "update.weight_decay must be");
    ExpectRefused([&](Plan& p) { p.learning_rate.peak = bad; }, "learning_rate.peak must be");
    ExpectRefused([&](Plan& p) { p.learning_rate.floor = bad; }, "learning_rate.floor must be");
    ExpectRefused([&](Plan& p) { p.max_gradient_norm = bad; }, "max_gradient_norm must be");
  }
}

TEST(PlanValidate, RefusesNumbersOutOfRangeWithFieldValueAndRange) {
  ExpectRefused([](Plan& p) { p.accumulation = 0; },
                "accumulation must be between 1 and 1048576, not 0");
  ExpectRefused([](Plan& p) { p.buckets.bytes_max = 0; }, "bucket_bytes_max must be between 1 and");
  ExpectRefused([](Plan& p) { p.recompute.layers = 0; }, "recompute.layers must be between 1 and");
  ExpectRefused([](Plan& p) { p.buckets.first_bytes = -1; }, "first_bucket_bytes must be");
  ExpectRefused([](Plan& p) { p.update.beta1 = 1; }, "at least 0 and below 1, not 1");
  ExpectRefused([](Plan& p) { p.update.beta2 = -0.5; }, "at least 0 and below 1, not -0.5");
  ExpectRefused([](Plan& p) { p.update.epsilon = 0; }, "a finite number above 0, not 0");
  ExpectRefused([](Plan& p) { p.update.epsilon = 1e-46; }, "is 0 in 32 bits");
  ExpectRefused([](Plan& p) { p.update.weight_decay = -1; }, "0 or more, not -1");
  ExpectRefused([](Plan& p) { p.learning_rate.peak = -1; }, "learning_rate.peak must be between 0");
  ExpectRefused([](Plan& p) { p.learning_rate.warmup_steps = -1; }, "warmup_steps must be between");
  ExpectRefused([](Plan& p) { p.learning_rate.total_steps = -1; }, "total_steps must be between");
  ExpectRefused([](Plan& p) { p.max_gradient_norm = -0.1; }, "0 or more, not -0.1");
}

TEST(PlanValidate, RefusesTypesThatAStateCannotHave) {
  ExpectRefused([](Plan& p) { p.dtypes.gradients = DType::kI32; }, "gradient_dtype must be");
  ExpectRefused([](Plan& p) { p.dtypes.optimizer = DType::kBf16; }, "optimizer_dtype must be");
}

TEST(PlanValidate, RefusesALearningRateFloorAboveThePeak) {
  ExpectRefused([](Plan& p) { p.learning_rate = {.peak = 0.1, .floor = 0.2}; },
                "learning_rate.floor must be between 0 and the peak, which is 0.1, not 0.2");
}

TEST(PlanValidate, WantsToKnowWhereAFallingLearningRateEnds) {
  ExpectRefused([](Plan& p) { p.learning_rate = {.kind = Kind::kCosine, .warmup_steps = 10}; },
                "total_steps must be more than the 10 steps of warm-up, since a cosine schedule "
                "falls after them, not 0");
  EXPECT_THAT(PlanWith([](Plan& p) {
                p.learning_rate = {.kind = Kind::kLinear, .warmup_steps = 10, .total_steps = 11};
              }).Validate(),
              IsOk());
}

TEST(PlanValidate, RefusesOptimizerStateThatOutlivesTheShardItUpdates) {
  ExpectRefused([](Plan& p) { p.gradients.placement = Placement::kShard; },
                "optimizer.placement must be shard where the gradients are sharded");
  ExpectRefused([](Plan& p) { p.parameters.placement = Placement::kShard; },
                "optimizer.placement must be shard where the parameters are sharded");
  ExpectRefused([](Plan& p) { p.parameters.placement = p.optimizer.placement = Placement::kShard; },
                "gradients.placement must be shard where the parameters are sharded");
}

TEST(PlanValidate, RefusesSecondaryShardsOfWhatIsNotGivenUp) {
  ExpectRefused([](Plan& p) { p.gathering.secondary_ranks = 2; },
                "gathering.secondary_ranks must be 0 unless");
}

TEST(CompletePlan, PutsTheRanksOfANodeWhereThePlanSaysSo) {
  const Plan plan = CompletePlan(*PlanPreset("hybrid_shard"), 4);
  EXPECT_EQ(plan.shard_ranks, 4);
  EXPECT_EQ(CompletePlan(*PlanPreset("fsdp"), 4), *PlanPreset("fsdp"));
}

TEST(PlanValidate, RefusesToGatherAgainWhatIsNotSharded) {
  ExpectRefused([](Plan& p) { p.gathering.reshard_after_forward = true; },
                "reshard_after_forward must be false");
}

TEST(PlanValidate, AcceptsEveryRowOfTheTableOfStrategies) {
  // Which states each strategy shards: parameters, gradients, optimizer; whether it gathers again.
  struct Row {
    Placement parameters, gradients, optimizer;
    bool reshard_after_forward;
  };
  const Placement replicate = Placement::kReplicate, shard = Placement::kShard;
  for (const Row& row : {Row{replicate, replicate, replicate, false},
                         {replicate, replicate, shard, false},
                         {replicate, shard, shard, false},
                         {shard, shard, shard, false},
                         {shard, shard, shard, true}}) {
    EXPECT_THAT(PlanWith([&](Plan& p) {
                  p.parameters.placement = row.parameters;
                  p.gradients.placement = row.gradients;
                  p.optimizer.placement = row.optimizer;
                  p.gathering.reshard_after_forward = row.reshard_after_forward;
                }).Validate(),
                IsOk());
  }
}

TEST(PlanValidate, RefusesAnUpdateThatMeansNothing) {
  ExpectRefused([](Plan& p) { p.update.momentum = 0.9; },
                "update.momentum must be 0 with adamw, whose momentum is beta1, not 0.9");
  ExpectRefused([](Plan& p) { p.update = {.kind = UpdateRule::Kind::kSgd, .nesterov = true}; },
                "update.nesterov must be false without a momentum");
  ExpectRefused([](Plan& p) { p.groups = {{.parameters = "a b"}}; },
                "groups.0.parameters must be a pattern");
  ExpectRefused(
      [](Plan& p) {
        p.groups = {{.parameters = "*"}, {.parameters = "*", .beta1 = 1}};
      },
      "groups.1.beta1 must be at least 0 and below 1, not 1");
  ExpectRefused([](Plan& p) { p.groups = {{.parameters = "*", .learning_rate_scale = kNaN}}; },
                "groups.0.learning_rate_scale must be");
  ExpectRefused([](Plan& p) { p.groups = {{.parameters = "*", .weight_decay = -1}}; },
                "groups.0.weight_decay must be");
}

TEST(PlanValidate, RefusesALossScaleThatIsNone) {
  ExpectRefused([](Plan& p) { p.loss_scaling.initial = 0; },
                "loss_scaling.initial must be above 0 and at most 2^127, not 0");
  ExpectRefused([](Plan& p) { p.loss_scaling = LossScaling::Static(1e60); },
                "loss_scaling.initial must be");
  ExpectRefused([](Plan& p) { p.loss_scaling.window = 0; }, "loss_scaling.window must be between");
  ExpectRefused([](Plan& p) { p.loss_scaling.hysteresis = 0; }, "loss_scaling.hysteresis must be");
  ExpectRefused([](Plan& p) { p.loss_scaling.growth = 0.5; }, "loss_scaling.growth must be 1 or");
  ExpectRefused([](Plan& p) { p.loss_scaling.backoff = 1; },
                "loss_scaling.backoff must be between");
  ExpectRefused(
      [](Plan& p) {
        p.loss_scaling = {.kind = LossScaling::Kind::kDeepSpeed, .initial = 2, .minimum = 4};
      },
      "loss_scaling.minimum must be at most the initial scale, which is 2, not 4");
}

TEST(PlanValidate, RefusesAPresetNameThatWouldNotStayOnItsLine) {
  ExpectRefused([](Plan& p) { p.preset = "a\nb=c"; }, "preset must be a name");
  ExpectRefused([](Plan& p) { p.preset = ""; }, "preset must be a name");
}

TEST(PlanValidate, RefusesAScheduleOfWhatIsNoPipeline) {
  ExpectRefused(
      [](Plan& p) {
        p.stages = 2;
        p.schedule = "gpipes";
      },
      "schedule must be gpipe, 1f1b, interleaved, zb-h1, zbv, dualpipev, not 'gpipes'");
  ExpectRefused([](Plan& p) { p.schedule = "gpipe"; },
                "schedule must be 1f1b where there is one stage, which is not a pipeline");
}

TEST(PlanValidate, RefusesCostsOfUnitsThatAreNone) {
  const auto with = [](std::vector<UnitCost> costs, int64_t stages) {
    return [=](Plan& p) {
      p.stages = stages;
      p.unit_costs = costs;
    };
  };
  ExpectRefused(with({{"h 0", 1}}, 2), "unit_costs.0.units must be a pattern of letters");
  ExpectRefused(with({{"*", 1}, {"*", -1}}, 2), "unit_costs.1.cost must be a finite number, 0 or");
  ExpectRefused(with({{"h.*", 2}, {"*", 1}}, 1),
                "unit_costs must be left out where there is one stage: nothing is cut, not "
                "h.*:2 *:1");
}

TEST(Describe, TellsPlansApartThatDifferInAnyField) {
  const std::vector<Change> changes = {
      [](Plan&) {},
      [](Plan& p) { p.preset = "mine"; },
      [](Plan& p) { p.parameters.placement = Placement::kShard; },
      [](Plan& p) { p.parameters.residency = Residency::kCpu; },
      [](Plan& p) { p.gradients.placement = Placement::kShard; },
      [](Plan& p) { p.gradients.residency = Residency::kNvme; },
      [](Plan& p) { p.optimizer.placement = Placement::kShard; },
      [](Plan& p) { p.optimizer.residency = Residency::kCpu; },
      [](Plan& p) { p.schedule = "gpipe"; },
      [](Plan& p) { p.stages_per_rank = 2; },
      [](Plan& p) {
        p.unit_costs = {{"h.*", 2}};
      },
      [](Plan& p) {
        p.unit_costs = {{"h.*", 3}};
      },
      [](Plan& p) { p.shard_ranks = 2; },
      [](Plan& p) { p.gathering.reshard_after_forward = true; },
      [](Plan& p) { p.gathering.secondary_ranks = 2; },
      [](Plan& p) { p.gathering.backward_prefetch = BackwardPrefetch::kPost; },
      [](Plan& p) { p.gathering.prefetch_units = 2; },
      [](Plan& p) { p.gathering.prefetch_elements = 2; },
      [](Plan& p) { p.gathering.max_live_elements = 2; },
      [](Plan& p) { p.gathering.max_reuse_distance = 2; },
      [](Plan& p) { p.gathering.persistence_threshold = 2; },
      [](Plan& p) { p.gathering.persistence_total = 2; },
      [](Plan& p) { p.gradient_reduction = GradientReduction::kOnce; },
      [](Plan& p) { p.memory_bytes_max = 1; },
      [](Plan& p) { p.dtypes.gradients = DType::kF32; },
      [](Plan& p) { p.dtypes.optimizer = DType::kF32; },
      [](Plan& p) { p.mode = SumMode::kOrdered; },
      [](Plan& p) { p.accumulation = 2; },
      [](Plan& p) { p.buckets.bytes_max += 1; },
      [](Plan& p) { p.buckets.first_bytes += 1; },
      [](Plan& p) { p.overlap = false; },
      [](Plan& p) { p.recompute.kind = Recompute::Kind::kFull; },
      [](Plan& p) { p.recompute.layers = 2; },
      [](Plan& p) { p.update.beta1 = std::nextafter(p.update.beta1, 1); },
      [](Plan& p) { p.update.beta2 = std::nextafter(p.update.beta2, 1); },
      [](Plan& p) { p.update.epsilon = std::nextafter(p.update.epsilon, 1); },
      [](Plan& p) { p.update.weight_decay = std::nextafter(p.update.weight_decay, 1); },
      [](Plan& p) { p.update.kind = UpdateRule::Kind::kSgd; },
      [](Plan& p) { p.update.momentum = 0.5; },
      [](Plan& p) { p.update.nesterov = true; },
      [](Plan& p) { p.update.stochastic_rounding = true; },
      [](Plan& p) { p.groups = {{.parameters = "a"}}; },
      [](Plan& p) { p.groups = {{.parameters = "b"}}; },
      [](Plan& p) { p.groups = {{.parameters = "a", .frozen = true}}; },
      [](Plan& p) { p.groups = {{.parameters = "a", .learning_rate_scale = 2}}; },
      [](Plan& p) { p.groups = {{.parameters = "a", .weight_decay = 0.1}}; },
      [](Plan& p) { p.groups = {{.parameters = "a", .beta1 = 0.1}}; },
      [](Plan& p) { p.groups = {{.parameters = "a", .beta2 = 0.1}}; },
      [](Plan& p) { p.loss_scaling.kind = LossScaling::Kind::kTorch; },
      [](Plan& p) { p.loss_scaling.initial = 1; },
      [](Plan& p) { p.loss_scaling.window = 1; },
      [](Plan& p) { p.loss_scaling.hysteresis = 1; },
      [](Plan& p) { p.loss_scaling.consecutive_hysteresis = true; },
      [](Plan& p) { p.loss_scaling.minimum = 2; },
      [](Plan& p) { p.loss_scaling.growth = 3; },
      [](Plan& p) { p.loss_scaling.backoff = 0.25; },
      [](Plan& p) { p.learning_rate.kind = Kind::kCosine; },
      [](Plan& p) { p.learning_rate.peak = std::nextafter(p.learning_rate.peak, 1); },
      [](Plan& p) { p.learning_rate.floor = std::numeric_limits<double>::denorm_min(); },
      [](Plan& p) { p.learning_rate.warmup_steps = 1; },
      [](Plan& p) { p.learning_rate.total_steps = 1; },
      [](Plan& p) { p.learning_rate.rise = LearningRateSchedule::Rise::kLinear; },
      [](Plan& p) { p.max_gradient_norm = std::nextafter(1, 2); },
      [](Plan& p) { p.seed = std::numeric_limits<uint64_t>::max(); },
  };
  std::set<PlanText> texts;
  for (const Change& change : changes) texts.insert(Describe(PlanWith(change)));
  EXPECT_EQ(texts.size(), changes.size());
}

TEST(Describe, WritesNumbersThatReadBackAsTheSame) {
  for (const double rate : {0.1, 3e-4, 1.0 / 3, 6.02e23, 1e-320}) {
    const auto text = MapOf(PlanWith([&](Plan& p) { p.learning_rate.peak = rate; }));
    EXPECT_EQ(std::strtod(text.at("learning_rate.peak").c_str(), nullptr), rate);
  }
}

TEST(Describe, WritesNumbersInTheirShortestForm) {
  const auto text = MapOf(Plan());
  EXPECT_EQ(text.at("update.beta2"), "0.95");
  EXPECT_EQ(text.at("update.epsilon"), "1e-08");
  EXPECT_EQ(text.at("learning_rate.peak"), "3e-04");
  EXPECT_EQ(text.at("max_gradient_norm"), "1");
  EXPECT_EQ(text.at("overlap"), "true");
  EXPECT_EQ(text.at("bucket_bytes_max"), "26214400");
}

TEST(Describe, IsTheSameForEqualPlans) {
  const Plan negative_zero = PlanWith([](Plan& p) { p.learning_rate.floor = -0.0; });
  ASSERT_EQ(negative_zero, Plan());
  EXPECT_EQ(Describe(negative_zero), Describe(Plan()));
}

TEST(Describe, NamesEveryFieldOnce) { EXPECT_EQ(MapOf(Plan()).size(), Describe(Plan()).size()); }

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

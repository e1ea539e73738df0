// Parameters of 16 bits over masters of f32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "muster/engine.h"
#include "muster/sixteen_bits.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMicroBatches = 8;  // of a step

struct Course {
  absl::Status status;
  std::vector<double> losses;
  std::vector<StepResult> steps;
  std::string hash;
  EngineMemory memory;
};

struct Setting {
  DType dtype = DType::kBf16;
  std::string preset = "ddp";
  LossScaling scaling = {};
  SumMode mode = SumMode::kOrdered;
  UpdateRule update = {};
  uint64_t seed = 1;
};

Course TrainRank(Communicator& world, const Setting& setting, int steps,
                 const std::string& load = "", const std::string& save = "") {
  Plan plan = CompletePlan(*PlanPreset(setting.preset), std::max(1, world.size() / 2));
  plan.mode = setting.mode;
  plan.accumulation = kMicroBatches / world.size();
  plan.learning_rate = {.peak = 3e-3};
  plan.loss_scaling = setting.scaling;
  plan.update = setting.update;
  plan.seed = setting.seed;
  Course course;
  auto training = SmallTraining::Create(world, plan, setting.dtype);
  course.status = training.status();
  if (course.status.ok() && !load.empty()) {
    course.status = (*training)->engine().Load(load).status();
  }
  for (int i = 0; course.status.ok() && i < steps; ++i) {
    const auto step = (*training)->Step();
    course.status = step.status();
    if (!step.ok()) break;
    course.steps.push_back(*step);
    course.losses.push_back(step->loss);
  }
  if (course.status.ok() && !save.empty()) course.status = (*training)->engine().Save(save, {});
  if (!course.status.ok()) return course;
  const auto hash = (*training)->engine().ParameterHash();
  course.status = hash.status();
  if (hash.ok()) course.hash = *hash;
  course.memory = (*training)->engine().memory();
  return course;
}

Course Train(int ranks, const Setting& setting, int steps) {
  const auto courses =
      OnRanks<Course>(ranks, [&](Communicator& world) { return TrainRank(world, setting, steps); });
  for (const Course& course : courses) {
    EXPECT_THAT(course.status, IsOk());
    EXPECT_EQ(course.hash, courses[0].hash);
  }
  return courses[0];
}

TEST(SixteenBits, LearnAsF32DoesWithinTheirDigits) {
  const Course wide = Train(1, {.dtype = DType::kF32}, 30);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const Course narrow = Train(1, {.dtype = dtype}, 30);
    ASSERT_EQ(narrow.losses.size(), wide.losses.size());
    const double tolerance = dtype == DType::kBf16 ? 2e-2 : 3e-3;
    for (size_t i = 0; i < wide.losses.size(); ++i) {
      EXPECT_NEAR(narrow.losses[i] / wide.losses[i], 1, tolerance) << ToString(dtype) << " " << i;
    }
    EXPECT_LT(narrow.losses.back(), wide.losses.front() - 1);
  }
}

TEST(SixteenBits, GiveTheSameBitsForEveryPresetOnOneToEightRanks) {
  const std::string expected = Train(1, {}, 6).hash;
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {1, 2, 4, 8}) {
      EXPECT_EQ(Train(ranks, {.preset = preset}, 6).hash, expected)
          << preset << " on " << ranks << " ranks";
    }
  }
}

// 65536 is the first scale of PyTorch and DeepSpeed, and more than f16 holds: the backward pass
// begins with it divided by the tokens of a micro-batch.
TEST(SixteenBits, OfF16TrainFromTheFirstStepOnAtTheScalesOfThePeers) {
  const Course wide = Train(1, {.dtype = DType::kF32}, 12);
  for (const LossScaling& scaling :
       {LossScaling::Static(65536), LossScaling::DeepSpeed(), LossScaling::Torch()}) {
    const Course narrow = Train(1, {.dtype = DType::kF16, .scaling = scaling}, 12);
    ASSERT_EQ(narrow.losses.size(), wide.losses.size());
    for (size_t i = 0; i < wide.losses.size(); ++i) {
      EXPECT_FALSE(narrow.steps[i].skipped) << "step " << i + 1;
      EXPECT_EQ(narrow.steps[i].loss_scale, 65536);
      EXPECT_NEAR(narrow.losses[i] / wide.losses[i], 1, 3e-3) << "step " << i + 1;
    }
  }
}

TEST(SixteenBits, OfF16GiveTheSameBitsForEveryPresetAndCutWithALossScaleThatMoves) {
  const LossScaling scaling = {.kind = LossScaling::Kind::kTorch, .initial = 0x1p24, .window = 3};
  const Course one = Train(1, {.dtype = DType::kF16, .scaling = scaling}, 16);
  EXPECT_TRUE(one.steps.front().skipped);
  EXPECT_FALSE(one.steps.back().skipped && one.steps[14].skipped);
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {2, 8}) {
      const Course cut =
          Train(ranks, {.dtype = DType::kF16, .preset = preset, .scaling = scaling}, 16);
      EXPECT_EQ(cut.hash, one.hash) << preset << " on " << ranks << " ranks";
      EXPECT_EQ(cut.losses, one.losses) << preset << " on " << ranks << " ranks";
    }
  }
}

TEST(SixteenBits, EndAfterTwentySkippedStepsInARowAndSayWhatToDo) {
  const auto ends = OnRanks<Course>(2, [](Communicator& world) {
    const Setting setting = {.dtype = DType::kF16, .scaling = LossScaling::Static(0x1p30)};
    return TrainRank(world, setting, 30);
  });
  for (const Course& end : ends) {
    EXPECT_EQ(end.steps.size(), 19);
    EXPECT_THAT(end.status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("step 20: the gradient is not finite, first in "),
                               HasSubstr("20 consecutive steps were skipped "),
                               HasSubstr("at a loss scale of 1.07374e+09: give a lower scale"))));
  }
}

TEST(SixteenBits, HoldTwoBytesOfParametersAndF32OfTheRest) {
  const EngineMemory memory = Train(1, {.mode = SumMode::kFast}, 2).memory;
  EXPECT_EQ(memory.gradients, 2 * memory.parameters);
  EXPECT_EQ(memory.optimizer, 6 * memory.parameters);  // master and two moments
}

// What kernels of 16 bits work in is the tape's, and the plan's.
TEST(SixteenBits, ReserveWhatIsPlannedWithTheMemoryThatTheirKernelsWorkIn) {
  for (const char* preset : {"ddp", "zero-1", "full-shard"}) {
    OnRanks<int>(2, [&](Communicator& world) {
      const Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 2);
      ParameterStore store(DType::kBf16);
      const auto gpt = *Decoder::Create(kSmallGpt, store);
      const Engine::BatchSize size = {.batch = kRows, .sequence = kSmallGpt.context};
      const auto planned = Engine::PlanMemory(store, plan, {world.size()}, gpt->Units(), size);
      EXPECT_THAT(planned, IsOk());
      auto training = SmallTraining::Create(world, plan, DType::kBf16);
      EXPECT_THAT((*training)->Steps(2), IsOk());
      const EngineMemory memory = (*training)->engine().memory();
      EXPECT_NEAR(static_cast<double>(memory.activations_peak),
                  static_cast<double>(planned->activations_peak),
                  0.01 * static_cast<double>(planned->activations_peak))
          << preset;
      EXPECT_LE(memory.total(), 1.01 * static_cast<double>(planned->total())) << preset;
      return 0;
    });
  }
}

// Steps that are too small to show in 16 bits add up in the masters.
TEST(SixteenBits, DoNotLoseSmallSteps) {
  const auto moved = OnRanks<bool>(1, [](Communicator& world) {
    Plan plan;
    plan.learning_rate = {.peak = 1e-4};  // norms are 1, where bf16's last digit is 2^-8
    plan.update.weight_decay = 0;
    auto training = *SmallTraining::Create(world, plan, DType::kBf16);
    const Tensor& norm = training->store().Find("ln_f.weight")->value();
    const auto bits = [&] {
      const auto* first = static_cast<const uint16_t*>(norm.raw_data());
      return std::vector<uint16_t>(first, first + norm.num_elements());
    };
    const std::vector<uint16_t> before = bits();
    EXPECT_THAT(training->Steps(3), IsOk());
    EXPECT_EQ(bits(), before);
    EXPECT_THAT(training->Steps(80), IsOk());
    return bits() != before;
  });
  EXPECT_TRUE(moved[0]);
}

TEST(SixteenBits, SkipStepsUntilTheLossScaleFitsF16) {
  const Course course =
      Train(2,
            {.dtype = DType::kF16,
             .scaling = {.kind = LossScaling::Kind::kTorch, .initial = 0x1p30, .window = 2000}},
            30);
  EXPECT_TRUE(course.steps.front().skipped);
  EXPECT_FALSE(course.steps.back().skipped);
  EXPECT_LT(course.steps.back().loss_scale, 0x1p24);
  EXPECT_LT(course.losses.back(), course.losses.front());
}

// Saves after 3 steps on two ranks and goes on for 3 more on four, under every preset.
void ExpectTheSameBitsAfterARestart(Setting setting) {
  const std::string expected = Train(2, setting, 6).hash;
  for (const std::string& preset : DataParallelPresets()) {
    setting.preset = preset;
    const TemporaryDirectory directory;
    const auto run = [&](int ranks, int steps, const std::string& load, const std::string& save) {
      return OnRanks<Course>(ranks, [&](Communicator& world) {
        return TrainRank(world, setting, steps, load, save);
      })[0];
    };
    const Course saved = run(2, 3, "", directory.path());
    ASSERT_THAT(saved.status, IsOk()) << preset;
    EXPECT_EQ(run(4, 0, directory.path(), "").hash, saved.hash) << preset;
    const Course rest = run(4, 3, directory.path(), "");
    ASSERT_THAT(rest.status, IsOk()) << preset;
    EXPECT_EQ(rest.hash, expected) << preset;
  }
}

TEST(SixteenBits, GoOnFromACheckpointWithTheirMasters) { ExpectTheSameBitsAfterARestart({}); }

// --- stochastic rounding

TEST(StochasticRounding, GivesTheSameBitsForEveryPresetOnOneToEightRanks) {
  const Setting setting = {.update = {.stochastic_rounding = true}};
  const std::string expected = Train(1, setting, 6).hash;
  EXPECT_NE(expected, Train(1, {}, 6).hash);
  Setting other_seed = setting;
  other_seed.seed = 2;
  EXPECT_NE(expected, Train(1, other_seed, 6).hash);
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {2, 4, 8}) {
      Setting on = setting;
      on.preset = preset;
      EXPECT_EQ(Train(ranks, on, 6).hash, expected) << preset << " on " << ranks << " ranks";
    }
  }
}

TEST(StochasticRounding, LearnsAsF32Does) {
  const Course wide = Train(1, {.dtype = DType::kF32}, 30);
  for (const auto kind : {UpdateRule::Kind::kAdamW, UpdateRule::Kind::kAdam}) {
    const UpdateRule rule = {.kind = kind, .weight_decay = 0, .stochastic_rounding = true};
    const Course narrow = Train(1, {.update = rule}, 30);
    EXPECT_NEAR(narrow.losses.back() / wide.losses.back(), 1, 0.1) << ToString(kind);
  }
}

// Its values are rounded once the update is done, by the same draws.
TEST(StochasticRounding, IsOfEveryRule) {
  const UpdateRule sgd = {
      .kind = UpdateRule::Kind::kSgd, .momentum = 0.9, .stochastic_rounding = true};
  UpdateRule nearest = sgd;
  nearest.stochastic_rounding = false;
  const std::string expected = Train(1, {.update = sgd}, 4).hash;
  EXPECT_NE(expected, Train(1, {.update = nearest}, 4).hash);
  EXPECT_EQ(Train(4, {.preset = "zero-3", .update = sgd}, 4).hash, expected);
}

TEST(StochasticRounding, GoesOnFromACheckpointWithTheSameBits) {
  ExpectTheSameBitsAfterARestart({.update = {.stochastic_rounding = true}});
}

// The draws are of the updates that were taken: none of a step that was skipped, which changes
// nothing.
TEST(StochasticRounding, LeavesParametersAsTheyAreInASkippedStep) {
  const Setting setting = {
      .scaling = {.kind = LossScaling::Kind::kTorch, .initial = 0x1p127, .growth = 2},
      .update = {.stochastic_rounding = true}};
  const Course none = Train(1, setting, 0);
  const Course one = Train(1, setting, 1);
  ASSERT_TRUE(one.steps[0].skipped);
  EXPECT_EQ(one.hash, none.hash);
  ExpectTheSameBitsAfterARestart(setting);
}

// A step too small to show in 16 bits moves some of the values at once.
TEST(StochasticRounding, ShowsSmallStepsInSomeValues) {
  const auto moved = OnRanks<int64_t>(1, [](Communicator& world) {
    Plan plan;
    plan.learning_rate = {.peak = 1e-4};  // norms are 1, where bf16's last digit is 2^-8
    plan.update = {.weight_decay = 0, .stochastic_rounding = true};
    auto training = *SmallTraining::Create(world, plan, DType::kBf16);
    EXPECT_THAT(training->Steps(10), IsOk());
    const Tensor& norm = training->store().Find("ln_f.weight")->value();
    const auto* first = static_cast<const uint16_t*>(norm.raw_data());
    return std::count_if(first, first + norm.num_elements(),
                         [](uint16_t bits) { return FromBf16(bits) != 1; });
  });
  EXPECT_GT(moved[0], 0);
  EXPECT_LT(moved[0], kSmallGpt.hidden_size);
}

// The last stage has a copy of the table that the first one updates.
TEST(StochasticRounding, HasTheSameBitsInAPipelineAndAfterItsRestart) {
  const TemporaryDirectory directory;
  const auto hash = [&](int ranks, int steps, bool loads, bool saves) {
    Plan plan = SmallPlan(SumMode::kOrdered, 4);
    plan.update.stochastic_rounding = true;
    plan.stages = ranks;
    return OnRanks<std::string>(ranks, [&](Communicator& world) {
      ReaderTraining on(world, plan, nullptr, DType::kBf16);
      if (loads) {
        EXPECT_THAT(on.engine->Load(directory.path()), IsOk());
      }
      on.Steps(steps);
      if (saves) {
        EXPECT_THAT(on.engine->Save(directory.path(), {}), IsOk());
      }
      return on.Hash();
    })[0];
  };
  const std::string expected = hash(1, 5, false, false);
  EXPECT_EQ(hash(2, 5, false, false), expected);
  hash(1, 3, false, true);
  EXPECT_EQ(hash(2, 2, true, false), expected);
}

TEST(StochasticRounding, IsRefusedForOtherTypesThanBf16) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    OnRanks<int>(1, [&](Communicator& world) {
      Plan plan;
      plan.update.stochastic_rounding = true;
      EXPECT_THAT(SmallTraining::Create(world, plan, dtype),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           ::testing::HasSubstr("update.stochastic_rounding must be left out with "
                                                "parameters in ")));
      return 0;
    });
  }
}

}  // namespace
}  // namespace muster::testing

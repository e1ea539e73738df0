// Parameters of 16 bits over masters of f32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "muster/engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

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
};

Course TrainRank(Communicator& world, const Setting& setting, int steps,
                 const std::string& load = "", const std::string& save = "") {
  Plan plan = CompletePlan(*PlanPreset(setting.preset), std::max(1, world.size() / 2));
  plan.mode = setting.mode;
  plan.accumulation = kMicroBatches / world.size();
  plan.learning_rate = {.peak = 3e-3};
  plan.loss_scaling = setting.scaling;
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
      const auto gpt = *Gpt::Create(kSmallGpt, store);
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

TEST(SixteenBits, GoOnFromACheckpointWithTheirMasters) {
  const std::string expected = Train(2, {}, 6).hash;
  for (const std::string& preset : DataParallelPresets()) {
    const TemporaryDirectory directory;
    const auto run = [&](int ranks, int steps, const std::string& load, const std::string& save) {
      return OnRanks<Course>(ranks, [&](Communicator& world) {
        return TrainRank(world, {.preset = preset}, steps, load, save);
      })[0];
    };
    ASSERT_THAT(run(2, 3, "", directory.path()).status, IsOk()) << preset;
    const Course rest = run(4, 3, directory.path(), "");
    ASSERT_THAT(rest.status, IsOk()) << preset;
    EXPECT_EQ(rest.hash, expected) << preset;
  }
}

}  // namespace
}  // namespace muster::testing

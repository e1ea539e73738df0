// The engine on a device whose memory the host cannot reach and whose kernels run late, in an order
// that is drawn: the bits of the engine on the host, which has the same kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Trains on ranks that share one GPU.
Outcome TrainLate(int ranks, const Plan& plan, int steps, uint64_t seed,
                  DType dtype = DType::kF32) {
  EmulatedCuda cuda({.seed = seed});
  Outcome outcome = Train(ranks, plan, steps, dtype, [&] { return MakeLateDevice(cuda); });
  EXPECT_THAT(cuda.Finish(), IsOk());
  return outcome;
}

TEST(EngineOnADevice, HasTheBitsOfTheHostInWhateverOrderItsWorkRuns) {
  const Plan plan = SmallPlan(SumMode::kOrdered, 3);
  const Outcome host = Train(1, plan, 5);
  for (const uint64_t seed : {1, 2, 3, 4}) {
    const Outcome late = TrainLate(1, plan, 5, seed);
    EXPECT_EQ(late.hash, host.hash);
    // Losses of a step are added in another order.
    EXPECT_LE(LargestRelativeDifference(late.losses, host.losses), 1e-12);
  }
}

TEST(EngineOnADevice, HasTheBitsOfTheHostUnderEveryPreset) {
  const std::string expected = Train(1, SmallPlan(SumMode::kOrdered, 4), 4).hash;
  uint64_t seed = 10;
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {1, 2}) {
      const Plan plan = Under(preset, SmallPlan(SumMode::kOrdered, 4 / ranks), ranks);
      EXPECT_EQ(TrainLate(ranks, plan, 4, ++seed).hash, expected)
          << preset << " on " << ranks << " ranks, seed " << seed;
    }
  }
}

// Steps on batches of a reader, of a model that the engine may cut; `device` may be null.
std::string HashOfUnits(Communicator& world, const Plan& plan, const Device* device) {
  ReaderTraining on(world, plan, device);
  on.Steps(4);
  return on.Hash();
}

// Activations and the gradient of the tied table travel between devices.
TEST(EngineOnADevice, RunsAPipelineToTheBitsOfOneProcessOnTheHost) {
  const auto hash = [](int ranks, int64_t stages, EmulatedCuda* cuda) {
    Plan plan = Under("zero-1", SmallPlan(SumMode::kOrdered, 8 * stages / ranks),
                      ranks / static_cast<int>(stages));
    plan.stages = stages;
    return OnRanks<std::string>(ranks, [&](Communicator& world) {
      if (cuda == nullptr) return HashOfUnits(world, plan, nullptr);
      const std::unique_ptr<Device> device = MakeLateDevice(*cuda);
      return HashOfUnits(world, plan, device.get());
    });
  };
  const std::string one = hash(1, 1, nullptr)[0];
  for (const auto& [ranks, stages] : {std::pair{1, int64_t{1}}, {2, 2}, {4, 2}}) {
    EmulatedCuda cuda({.seed = static_cast<uint64_t>(ranks)});
    EXPECT_THAT(hash(ranks, stages, &cuda), Each(one)) << ranks;
    EXPECT_THAT(cuda.Finish(), IsOk());
  }
}

TEST(EngineOnADevice, HasTheBitsOfTheHostInFastModeAndWithRoundedReductions) {
  for (const std::string preset : {"ddp", "zero-1", "zero-3"}) {
    for (const bool rounds : {false, true}) {
      Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 2);
      if (rounds) plan.dtypes.reduced = DType::kBf16;
      EXPECT_EQ(TrainLate(2, plan, 4, 30).hash, Train(2, plan, 4).hash) << preset << rounds;
    }
  }
}

TEST(EngineOnADevice, HasTheBitsOfTheHostWithParametersOfSixteenBits) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const Plan plan = Under("zero-1", SmallPlan(SumMode::kFast, 2), 2);
    EXPECT_EQ(TrainLate(2, plan, 4, 40, dtype).hash, Train(2, plan, 4, dtype).hash);
  }
}

TEST(EngineOnADevice, HasTheBitsOfTheHostWithStochasticRounding) {
  uint64_t seed = 50;
  for (const auto kind : {UpdateRule::Kind::kAdamW, UpdateRule::Kind::kSgd}) {
    Plan plan = SmallPlan(SumMode::kOrdered, 4);
    plan.update = {.kind = kind, .stochastic_rounding = true};
    const std::string expected = Train(1, plan, 4, DType::kBf16).hash;
    EXPECT_EQ(TrainLate(1, plan, 4, ++seed, DType::kBf16).hash, expected) << ToString(kind);
    plan.accumulation = 2;
    for (const std::string preset : {"zero-1", "zero-3", "hybrid-shard"}) {
      EXPECT_EQ(TrainLate(2, Under(preset, plan, 2), 4, ++seed, DType::kBf16).hash, expected)
          << preset << ", " << ToString(kind) << ", seed " << seed;
    }
  }
}

TEST(EngineOnADevice, TakesNoMemoryInAStepAndWaitsOnceForItsRecord) {
  EmulatedCuda cuda({.seed = 5});
  CountingCuda counting(cuda);
  OnRanks<int>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> device = MakeLateDevice(counting);
    for (const std::string preset : {"ddp", "zero-1"}) {
      const Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 1);
      auto training = SmallTraining::Create(world, plan, DType::kF32, device.get());
      // Among them one whose work runs at its end, which needs most of the places that copies pass
      // through.
      EXPECT_THAT((*training)->Steps(8), IsOk());
      counting.Mark();
      EXPECT_THAT((*training)->Steps(3), IsOk());
      const CudaCalls calls = counting.since_mark();
      EXPECT_EQ(calls.allocations, 0) << preset;
      EXPECT_EQ(calls.frees, 0) << preset;
      EXPECT_EQ(calls.made, 0) << preset;
      EXPECT_EQ(calls.host_waits, 3) << preset;
    }
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

// One of the two trains on a device, in turn.
void ExpectTheSameBitsAcrossCheckpoints(const Plan& plan, DType dtype) {
  const std::string whole = Train(2, plan, 6, dtype).hash;
  EmulatedCuda cuda({.seed = 6});
  for (const bool first_on_host : {true, false}) {
    TemporaryDirectory directory;
    const auto train = [&](bool on_host, bool loads) {
      return OnRanks<std::string>(2, [&](Communicator& world) {
        const std::unique_ptr<Device> late = MakeLateDevice(cuda);
        auto training = SmallTraining::Create(world, plan, dtype, on_host ? nullptr : late.get());
        Engine& engine = (*training)->engine();
        if (loads) {
          EXPECT_THAT(engine.Load(directory.File("saved")), IsOk());
        }
        EXPECT_THAT((*training)->Steps(3), IsOk());
        if (!loads) {
          EXPECT_THAT(engine.Save(directory.File("saved"), {}), IsOk());
        }
        return engine.ParameterHash().value_or("none");
      });
    };
    train(first_on_host, false);
    EXPECT_THAT(train(!first_on_host, true), Each(whole));
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(EngineOnADevice, GoesOnFromCheckpointsOfTheHostAndTheHostFromItsOwn) {
  Plan plan = Under("zero-1", SmallPlan(SumMode::kOrdered, 2), 2);
  ExpectTheSameBitsAcrossCheckpoints(plan, DType::kF32);
  plan.update.stochastic_rounding = true;
  ExpectTheSameBitsAcrossCheckpoints(plan, DType::kBf16);
}

TEST(EngineOnADevice, EvaluatesAsTheHostDoes) {
  const Plan plan = SmallPlan(SumMode::kFast, 1);
  EmulatedCuda cuda({.seed = 7});
  const auto losses = OnRanks<std::vector<double>>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> late = MakeLateDevice(cuda);
    std::vector<double> losses;
    for (const Device* device : {static_cast<const Device*>(late.get()), &Device::Cpu()}) {
      auto training = SmallTraining::Create(world, plan, DType::kF32, device);
      const auto evaluation = (*training)->Evaluate(3);
      EXPECT_THAT(evaluation, IsOk());
      losses.push_back(evaluation.ok() ? evaluation->loss : -1);
    }
    return losses;
  })[0];
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_THAT(cuda.Finish(), IsOk());
}

// Puts an infinity into a gradient that has been written, from within the backward pass.
void Spoil(SmallTraining& training, const Device& device) {
  const Tensor& gradient = training.store().Find("ln_f.weight")->gradient();
  const float infinity = std::numeric_limits<float>::infinity();
  Queue queue(device);
  device.Upload(queue, &infinity, gradient.raw_data(), sizeof(infinity));
}

TEST(EngineOnADevice, NamesTheParameterWhoseGradientIsNotFiniteAndChangesNothing) {
  EmulatedCuda cuda({.seed = 8});
  OnRanks<int>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    auto training =
        SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1), DType::kF32, device.get());
    EXPECT_THAT((*training)->Steps(1), IsOk());
    const std::string before = (*training)->engine().ParameterHash().value_or("none");
    (*training)->within_backward = [&] { Spoil(**training, *device); };
    EXPECT_THAT((*training)->Step(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("step 2: the gradient is not finite, first in "
                                         "ln_f.weight"),
                               HasSubstr("the parameters are as they were"))));
    EXPECT_EQ((*training)->engine().ParameterHash().value_or("none"), before);
    (*training)->within_backward = [] {};
    EXPECT_THAT((*training)->Steps(1), IsOk());
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(EngineOnADevice, SkipsAStepThatALossScaleWasTooLargeForAndCountsItAsTheHostDoes) {
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.loss_scaling = {.kind = LossScaling::Kind::kTorch};
  EmulatedCuda cuda({.seed = 9});
  const auto hashes = OnRanks<std::vector<std::string>>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> late = MakeLateDevice(cuda);
    std::vector<std::string> hashes;
    for (const Device* device : {static_cast<const Device*>(late.get()), &Device::Cpu()}) {
      auto training = SmallTraining::Create(world, plan, DType::kF32, device);
      for (const bool spoils : {false, true, false, false}) {
        (*training)->within_backward = [&, spoils] {
          if (spoils) Spoil(**training, *device);
        };
        const auto step = (*training)->Step();
        EXPECT_THAT(step, IsOk());
        EXPECT_EQ(step->skipped, spoils);
      }
      hashes.push_back((*training)->engine().ParameterHash().value_or("none"));
    }
    return hashes;
  })[0];
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_THAT(cuda.Finish(), IsOk());
}

}  // namespace
}  // namespace muster::testing

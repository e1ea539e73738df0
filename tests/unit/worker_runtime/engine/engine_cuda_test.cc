// The engine on the cuda device: our kernels on an emulated GPU, products by the host. Near the
// host's numbers, whatever the order of the device's work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/cuda_device.h"
#include "tests/support/emulation/block_emulator.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_attention.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/emulated_products.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/engine/meta_run.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Epilogues = EmulatedProducts::Epilogues;
using AttentionCalls = EmulatedAttention::Options::Calls;

// How the engine's device computes attention in 16 bits.
struct Attention {
  bool by_library = false;
  bool same_bits = false;
  AttentionCalls* calls = nullptr;
  int64_t more_bytes = 0;  // that the library works in than the formula says
};

// A device of `cuda`, which outlives it.
std::unique_ptr<Device> DeviceOf(EmulatedCuda& cuda, CountingCuda** calls = nullptr,
                                 Epilogues epilogues = Epilogues::kInOnePass,
                                 Attention attention = {}) {
  auto counting = std::make_unique<CountingCuda>(cuda);
  if (calls != nullptr) *calls = counting.get();
  return *MakeCudaDevice(
      {.cuda = std::move(counting),
       .products = std::make_unique<EmulatedProducts>(epilogues),
       .operations = &CudaOperations,
       .attention = attention.by_library
                        ? std::make_unique<EmulatedAttention>(EmulatedAttention::Options{
                              .calls = attention.calls, .more_bytes = attention.more_bytes})
                        : nullptr,
       .attention_must = true,
       .attention_same_bits = attention.same_bits});
}

// Trains on ranks that share a GPU.
Outcome TrainOnCuda(int ranks, const Plan& plan, int steps, DType dtype, uint64_t seed,
                    Attention attention = {}) {
  BlockEmulator::SetSchedule(seed);
  EmulatedCuda cuda({.seed = seed});
  Outcome outcome = Train(ranks, plan, steps, dtype, [&] {
    return DeviceOf(cuda, nullptr, Epilogues::kInOnePass, attention);
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
  return outcome;
}

TEST(EngineOnCuda, LearnsAsTheHostDoesInWhateverOrderItsWorkRuns) {
  uint64_t seed = 0;
  for (const auto& [preset, ranks] : {std::pair{"ddp", 1}, {"zero-1", 2}}) {
    const Plan plan = Under(preset, SmallPlan(SumMode::kFast, 1), ranks);
    const Outcome host = Train(ranks, plan, 3);
    const Outcome cuda = TrainOnCuda(ranks, plan, 3, DType::kF32, ++seed);
    ASSERT_THAT(cuda.losses, ::testing::SizeIs(3));
    EXPECT_LE(LargestRelativeDifference(cuda.losses, host.losses), 1e-5)
        << preset << " on " << ranks << " ranks";
  }
}

TEST(EngineOnCuda, HasTheSameBitsWhateverTheOrderOfItsWork) {
  const Plan plan = Under("zero-3", SmallPlan(SumMode::kOrdered, 1), 2);
  EXPECT_EQ(TrainOnCuda(2, plan, 2, DType::kF32, 13).hash,
            TrainOnCuda(2, plan, 2, DType::kF32, 14).hash);
}

// Activations are rounded on both sides, each in places of its own.
TEST(EngineOnCuda, LearnsInSixteenBitsOverMastersOfThirtyTwo) {
  const Plan plan = SmallPlan(SumMode::kFast, 2);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const Outcome host = Train(1, plan, 3, dtype);
    const Outcome cuda = TrainOnCuda(1, plan, 3, dtype, 5);
    ASSERT_THAT(cuda.losses, ::testing::SizeIs(3));
    EXPECT_LE(LargestRelativeDifference(cuda.losses, host.losses), 1e-2) << ToString(dtype);
  }
}

TEST(EngineOnCuda, LearnsWithAttentionOfALibrary) {
  AttentionCalls calls;
  const Plan plan = SmallPlan(SumMode::kFast, 1);
  const Outcome host = Train(1, plan, 3, DType::kBf16);
  const Outcome cuda =
      TrainOnCuda(1, plan, 3, DType::kBf16, 9, {.by_library = true, .calls = &calls});
  ASSERT_THAT(cuda.losses, ::testing::SizeIs(3));
  EXPECT_LE(LargestRelativeDifference(cuda.losses, host.losses), 1e-2);
  base::MutexLock lock(calls.mu);
  EXPECT_EQ(calls.backward, calls.forward);
  EXPECT_EQ(calls.forward, 3 * kSmallGpt.layers);
}

TEST(EngineOnCuda, TakesNoMemoryInAStepAndWaitsOnceForItsRecord) {
  BlockEmulator::SetSchedule(6);
  EmulatedCuda cuda({.seed = 6});
  OnRanks<int>(1, [&](Communicator& world) {
    CountingCuda* calls = nullptr;
    const std::unique_ptr<Device> device = DeviceOf(cuda, &calls);
    auto training =
        SmallTraining::Create(world, SmallPlan(SumMode::kFast, 2), DType::kBf16, device.get());
    // Among them one whose work runs at its end, which needs most of the places that copies pass
    // through.
    EXPECT_THAT((*training)->Steps(8), IsOk());
    calls->Mark();
    EXPECT_THAT((*training)->Steps(2), IsOk());
    EXPECT_EQ(calls->since_mark().allocations, 0);
    EXPECT_EQ(calls->since_mark().frees, 0);
    EXPECT_EQ(calls->since_mark().made, 0);
    EXPECT_EQ(calls->since_mark().host_waits, 2);
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

// Kernels of ours that a step launches from its update on.
int64_t LaunchesOfUpdate(const Plan& plan, int layers) {
  EmulatedCuda cuda({.seed = 3});
  const std::vector<int64_t> launches = OnRanks<int64_t>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> device = DeviceOf(cuda);
    DecoderConfig config = kSmallGpt;
    config.layers = layers;
    ReaderTraining training(world, plan, device.get(), DType::kBf16, UnitsOf(config));
    int64_t before = -1;
    training.engine->OnPhase([&](int64_t, Phase phase) {
      if (phase == Phase::kUpdate && before < 0) before = BlockEmulator::launches;
    });
    training.Steps(1);
    EXPECT_GE(before, 0);
    return BlockEmulator::launches - before;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
  return launches.front();
}

// Two groups alternate: weights decay, and biases and norms do not. There is one bucket.
TEST(EngineOnCuda, UpdatesManyParametersByAsFewLaunchesAsFew) {
  for (const UpdateRule::Kind kind : {UpdateRule::Kind::kAdamW, UpdateRule::Kind::kSgd}) {
    Plan plan = SmallPlan(SumMode::kFast, 1);
    plan.update.kind = kind;
    plan.update.weight_decay = 0.1;
    plan.groups = {{.parameters = "*bias", .weight_decay = 0},
                   {.parameters = "*ln_*", .weight_decay = 0}};
    const int64_t of_one_layer = LaunchesOfUpdate(plan, 1);
    EXPECT_EQ(LaunchesOfUpdate(plan, 4), of_one_layer);
    EXPECT_GE(of_one_layer, 1);
    EXPECT_LE(of_one_layer, 10);
  }
}

struct MemoryCase {
  const char* preset;
  int ranks;
  DType dtype;
  Epilogues epilogues;
  CudaAttention attention = CudaAttention::kOwn;
  SumMode mode = SumMode::kFast;

  Plan plan() const { return Under(preset, SmallPlan(mode, 2), ranks); }
};

// What an engine takes of a GPU, in the mean of ranks that share it, and what its tape has of that.
// Beside what products work in, which those of the emulated GPU do not.
struct Taken {
  double bytes = 0;
  int64_t activations = 0;
};
Taken TakenPerRank(const MemoryCase& c) {
  BlockEmulator::SetSchedule(8);
  EmulatedCuda cuda({.seed = 8});
  const auto taken = [&](Communicator& world) {
    EXPECT_THAT(world.Barrier().Wait(), IsOk());
    const auto memory = cuda.MemoryInfo();
    EXPECT_THAT(world.Barrier().Wait(), IsOk());
    return static_cast<double>(memory->total_bytes - memory->free_bytes);
  };
  const auto all = OnRanks<Taken>(c.ranks, [&](Communicator& world) {
    const std::unique_ptr<Device> device =
        DeviceOf(cuda, nullptr, c.epilogues,
                 {.by_library = c.attention != CudaAttention::kOwn,
                  .same_bits = c.mode == SumMode::kOrdered});
    const double before = taken(world);
    ReaderTraining on(world, c.plan(), device.get(), c.dtype);
    on.Steps(4);
    return Taken{(taken(world) - before) / c.ranks, on.engine->memory().activations_peak};
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
  return all[0];
}

TEST(EngineOnCuda, TakesWhatIsPlannedOfTheGpusMemory) {
  for (const MemoryCase& c :
       {MemoryCase{"ddp", 1, DType::kF32, Epilogues::kNone},
        {"ddp", 1, DType::kBf16, Epilogues::kNone},
        {"zero-1", 2, DType::kBf16, Epilogues::kInOnePass},
        {"zero-3", 2, DType::kF16, Epilogues::kNone},
        {"ddp", 1, DType::kBf16, Epilogues::kInOnePass, CudaAttention::kCudnn},
        {"ddp", 1, DType::kF16, Epilogues::kInOnePass, CudaAttention::kCudnn, SumMode::kOrdered}}) {
    SCOPED_TRACE(c.preset);
    const auto planned = [&](bool on_gpus) {
      ParameterStore store(c.dtype);
      const auto gpt = *Decoder::Create(kSmallGpt, store);
      const auto memory = Engine::PlanMemory(
          store, c.plan(),
          {.world_size = c.ranks, .on_gpus = on_gpus, .cuda_attention = c.attention}, gpt->Units(),
          kWhole);
      EXPECT_THAT(memory, IsOk());
      return *memory;
    };
    const EngineMemory on_gpu = planned(true);
    EXPECT_EQ(on_gpu.device, kCudaWorkspaceBytes);
    const auto expected = static_cast<double>(on_gpu.total() - on_gpu.device - on_gpu.exchange);
    const Taken taken = TakenPerRank(c);
    EXPECT_LE(taken.bytes, 1.01 * expected);
    EXPECT_GE(taken.bytes, 0.95 * expected);  // it is that of the rank with the largest shards
    EXPECT_LE(taken.activations, on_gpu.activations_peak);
    EXPECT_GE(taken.activations, 0.97 * on_gpu.activations_peak);
    EXPECT_NE(planned(false).activations_peak, on_gpu.activations_peak);
  }
}

TEST(EngineOnCuda, PlansWithWhatTheLibraryOfItsDeviceWorksIn) {
  constexpr int64_t kMore = int64_t{3} << 20;
  const SmallBatch batch(0, 0);
  const auto planned = [&](int64_t more_bytes) {
    EmulatedCuda cuda({.seed = 8});
    const std::unique_ptr<Device> device = DeviceOf(cuda, nullptr, Epilogues::kInOnePass,
                                                    {.by_library = true, .more_bytes = more_bytes});
    ParameterStore store(DType::kBf16);
    const auto gpt = *Decoder::Create(kSmallGpt, store);
    const auto trace = engine::RecordUse(
        store, SmallPlan(SumMode::kFast, 1),
        [&](Tape& tape) { return gpt->ComputeLoss(tape, batch.tokens(), batch.targets); },
        device->meta());
    EXPECT_THAT(trace, IsOk());
    return trace->peak_bytes;
  };
  EXPECT_NEAR(planned(kMore) - planned(0), kMore, 8192);  // what that replaces is smaller
}

// What is let through trains, and what is refused would not.
TEST(EngineOnCuda, FitsWhatIsFreeOfTheGpuOrIsRefusedBeforeItTakesAny) {
  const Plan plan = SmallPlan(SumMode::kFast, 1);
  ParameterStore store;
  const auto gpt = *Decoder::Create(kSmallGpt, store);
  const auto planned = Engine::PlanMemory(store, plan, {.on_gpus = true}, gpt->Units(), kWhole);
  ASSERT_THAT(planned, IsOk());
  const auto needed = static_cast<size_t>(planned->total() - planned->exchange);
  constexpr size_t kOfTheDeviceItself = 4096;
  BlockEmulator::SetSchedule(9);
  EmulatedCuda enough({.seed = 9, .memory_bytes = needed + kOfTheDeviceItself});
  OnRanks<int>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> device = DeviceOf(enough);
    EXPECT_THAT(Engine::CheckFits(*planned, *device), IsOk());
    ReaderTraining on(world, plan, device.get());
    on.Steps(2);
    // Another engine would not fit beside it.
    EXPECT_THAT(Engine::CheckFits(*planned, *device), StatusIs(absl::StatusCode::kInvalidArgument));
    return 0;
  });
  EXPECT_THAT(enough.Finish(), IsOk());
  EmulatedCuda scarce({.seed = 9, .memory_bytes = needed - 1});
  {
    const std::unique_ptr<Device> device = DeviceOf(scarce);
    EXPECT_THAT(Engine::CheckFits(*planned, *device),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("of the memory of device cuda"), HasSubstr("are free"),
                               HasSubstr("recomputation"))));
  }
  EXPECT_THAT(scarce.Finish(), IsOk());
  EXPECT_THAT(Engine::CheckFits(*planned, Device::Cpu()), IsOk());
}

TEST(EngineOnCuda, RefusesATypeThatAGpuDoesNotComputeInAndNamesThoseThatItDoes) {
  const auto is_refused =
      StatusIs(absl::StatusCode::kUnimplemented,
               AllOf(HasSubstr("parameters in f64"), HasSubstr("f32, bf16, f16")));
  EmulatedCuda cuda({.seed = 10});
  OnRanks<int>(1, [&](Communicator& world) {
    const std::unique_ptr<Device> device = DeviceOf(cuda);
    const Plan plan = SmallPlan(SumMode::kFast, 1);
    EXPECT_THAT(SmallTraining::Create(world, plan, DType::kF64, device.get()).status(), is_refused);
    EXPECT_THAT(SmallTraining::Create(world, plan, DType::kF64).status(), IsOk());
    ParameterStore store(DType::kF64);
    const auto gpt = *Decoder::Create(kSmallGpt, store);
    store.PlaceOn(device.get());
    EXPECT_THAT(Engine::Create(world, store, plan, gpt->Units(), kWhole).status(), is_refused);
    const auto planned = [&](bool on_gpus) {
      return Engine::PlanMemory(store, plan, {.on_gpus = on_gpus}, gpt->Units(), kWhole).status();
    };
    EXPECT_THAT(planned(true), is_refused);
    EXPECT_THAT(planned(false), IsOk());
    return 0;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
}

TEST(EngineOnCuda, HasTheSameBitsInStepsThatAreCaptured) {
  const auto hash = [](bool captures, bool by_library) {
    BlockEmulator::SetSchedule(7);
    EmulatedCuda cuda({.seed = 7});
    const auto hashes = OnRanks<std::string>(1, [&](Communicator& world) {
      CountingCuda* calls = nullptr;
      const std::unique_ptr<Device> device =
          DeviceOf(cuda, &calls, Epilogues::kInOnePass, {.by_library = by_library});
      Plan plan = SmallPlan(SumMode::kFast, 1);
      plan.loss_scaling = LossScaling::Static(1024);
      plan.update.stochastic_rounding = true;
      ReaderTraining on(world, plan, device.get(), DType::kBf16, UnitsOf(kSmallGpt),
                        {.captures_steps = captures});
      on.Steps(5);
      EXPECT_EQ(calls->since_mark().graph_launches, captures ? 3 : 0);
      return on.Hash();
    });
    EXPECT_THAT(cuda.Finish(), IsOk());
    return hashes[0];
  };
  EXPECT_EQ(hash(true, false), hash(false, false));
  EXPECT_EQ(hash(true, true), hash(false, true));
}

}  // namespace
}  // namespace muster::testing

// Engines that register what their collectives work in: the bits of the host and of those that do
// not, under every preset, over a back end that fails whatever NCCL leaves undefined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "tests/unit/worker_runtime/engine/steps_on_streams.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const Told kToRegister = {.registers = true};

const StepsOfRank kThreeSteps = [](int, ReaderTraining& on) { on.Steps(3); };

// Every collective on the device is in registered memory, between steps too: the hash gathers
// units.
void CompareRegistered(int ranks, const Plan& plan, uint64_t seed,
                       const StepsOfRank& train = kThreeSteps, DType dtype = DType::kF32) {
  StreamFigures figures;
  Compare(ranks, plan, 0, train, seed, dtype, kToRegister, &figures);
  EXPECT_GT(figures.registered_calls, 0);
  EXPECT_EQ(figures.other_calls, 0);
}

TEST(RegisteredBuffers, AreNoneUnlessTheRanksAreToldTo) {
  StreamFigures figures;
  Compare(2, Under("zero-3", PlanOfSteps(1), 2), 0, kThreeSteps, 1, DType::kF32, {}, &figures);
  EXPECT_EQ(figures.registered_calls, 0);
  EXPECT_GT(figures.other_calls, 0);
}

TEST(RegisteredBuffers, AreAllThatCollectivesWorkInUnderEveryPreset) {
  uint64_t seed = 100;
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(preset, " on ", ranks, " ranks"));
      CompareRegistered(ranks, Under(preset, PlanOfSteps(1), ranks), ++seed);
    }
  }
}

TEST(RegisteredBuffers, AreAllThatCollectivesWorkInWithSeveralMicroBatches) {
  uint64_t seed = 200;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOfSteps(2), 4);
    plan.gradient_reduction = GradientReduction::kOnce;
    CompareRegistered(4, plan, ++seed);
    plan.gradient_reduction = GradientReduction::kEachMicroBatch;
    CompareRegistered(4, plan, ++seed);
  }
}

// What has been rounded travels from a buffer of its own.
TEST(RegisteredBuffers, AreTheRoundedCopiesOfGradientsToo) {
  uint64_t seed = 300;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOfSteps(1), 4);
    plan.dtypes.reduced = DType::kBf16;
    StreamFigures figures;
    const auto registered =
        OnStreams(4, plan, kThreeSteps, ++seed, DType::kF32, kToRegister, &figures);
    const auto plain = OnStreams(4, plan, kThreeSteps, ++seed, DType::kF32, {});
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(registered[rank].hash, plain[rank].hash);
    EXPECT_EQ(figures.other_calls, 0);
  }
}

// The backend adds no ordered sums in place; what is gathered is registered.
TEST(RegisteredBuffers, HaveTheBitsOfTheHostWhereSumsAreOrdered) {
  uint64_t seed = 400;
  for (const char* preset : {"zero-1", "zero-3"}) {
    SCOPED_TRACE(preset);
    CompareRegistered(4, Under(preset, PlanOfSteps(2, SumMode::kOrdered), 4), ++seed);
  }
}

TEST(RegisteredBuffers, AreThoseOfCapturedStepsToo) {
  uint64_t seed = 500;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    StreamFigures figures;
    Compare(
        4, Under(preset, PlanOfSteps(1), 4), 3, [](int, ReaderTraining& on) { on.Steps(5); },
        ++seed, DType::kF32, {.captures = true, .registers = true}, &figures);
    EXPECT_GT(figures.registered_calls, 0);
    EXPECT_EQ(figures.other_calls, 0);
  }
}

// The world's are not: between steps its memory is one rank's own and the others' for a moment.
TEST(RegisteredBuffers, AreThoseOfStagesInAPipeline) {
  for (const char* preset : {"ddp", "zero-1", "zero-2"}) {
    SCOPED_TRACE(preset);
    for (const int stages : {2, 4}) {
      Plan plan = Under(preset, PlanOfSteps(4), 4 / stages);
      plan.stages = stages;
      for (const bool captures : {false, true}) {
        StreamFigures figures;
        Compare(
            4, plan, captures ? 2 : 0,
            [](int, ReaderTraining& on) {
              on.Steps(2);
              on.Hash();
              on.Steps(2);
            },
            601, DType::kF32, {.captures = captures, .registers = true}, &figures);
        EXPECT_EQ(figures.registered_calls > 0, stages == 2);
      }
    }
  }
}

// The hash of a rank whose layers are used from the last to the first, so that the first step shows
// another order than was assumed: the buffers of reductions are taken again then.
std::string HashOfALearntOrder(Communicator& world, const Device& device, bool registers) {
  ParameterStore store;
  store.PlaceOn(&device);
  const Scope scope(store);
  std::vector<std::unique_ptr<Linear>> layers;
  for (int i = 0; i < 3; ++i) {
    layers.push_back(
        std::make_unique<Linear>(scope / i, Linear::Options{.inputs = 40, .outputs = 40}));
  }
  const std::vector<int32_t> targets(4, 1);
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.buckets.first_bytes = 4096;
  plan.buckets.bytes_max = 8192;
  plan.dtypes.reduced = DType::kBf16;  // in buffers of their own
  auto engine = Engine::Create(world, store, plan, nullptr, {.registers_buffers = registers});
  EXPECT_THAT(engine, IsOk());
  for (int step = 0; step < 4; ++step) {
    EXPECT_THAT((*engine)->Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
      Activation x = {.value = tape.pool().Allocate(DType::kF32, {4, 40})};
      tape.operations(DType::kF32).fill(tape.queue(), 0.1f * (world.rank() + 1), x.value);
      for (int i = 3; i-- > 0;) x = layers[i]->Forward(tape, x);
      return CrossEntropy(tape, x, targets);
    }),
                IsOk());
  }
  return (*engine)->ParameterHash().value_or("none");
}

// What every rank's `body` returns, and how the device ends.
template <typename Result>
std::vector<Result> OnDevices(int ranks, StreamFigures& figures,
                              const std::function<Result(Communicator&, const Device&)>& body) {
  EmulatedCuda cuda({.seed = 5, .work_per_question = kWorkPerQuestion});
  std::vector<Result> results(ranks);
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = ranks}, &figures);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        results[rank] = body(*communicators[rank], *device);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
  return results;
}

TEST(RegisteredBuffers, AreThoseThatTheEngineTakesOnceItHasLearntTheOrderOfGradients) {
  const auto hash = [](bool registers) {
    StreamFigures figures;
    const auto hashes =
        OnDevices<std::string>(2, figures, [&](Communicator& world, const Device& device) {
          return HashOfALearntOrder(world, device, registers);
        });
    EXPECT_EQ(hashes[0], hashes[1]);
    EXPECT_EQ(registers ? figures.other_calls : figures.registered_calls, 0);
    return hashes[0];
  };
  EXPECT_EQ(hash(true), hash(false));
}

// Rank 1 trains in the host's memory, of which its backend cannot be told.
TEST(RegisteredBuffers, LeaveNoRankAnEngineWhereOneCannotRegister) {
  for (const char* preset : {"ddp", "hybrid-shard"}) {
    SCOPED_TRACE(preset);
    StreamFigures figures;
    const auto ends =
        OnDevices<absl::Status>(4, figures, [&](Communicator& world, const Device& device) {
          return SmallTraining::Create(world, Under(preset, PlanOfSteps(1), 4), DType::kF32,
                                       world.rank() == 1 ? nullptr : &device,
                                       {.registers_buffers = true})
              .status();
        });
    for (const absl::Status& end : ends) {
      EXPECT_THAT(end, AnyOf(StatusIs(absl::StatusCode::kInvalidArgument),
                             StatusIs(absl::StatusCode::kAborted)));
      EXPECT_THAT(std::string(end.message()), HasSubstr("rank 1: the memory to register is not"));
    }
  }
}

}  // namespace
}  // namespace muster::testing

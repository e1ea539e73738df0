// Ranks whose collectives run on streams of an emulated GPU, compared with ranks on the host: for
// tests of the engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"

namespace muster::testing {

// A step has hundreds of pieces of work on each rank, and nobody but the communicators asks before
// its end.
inline constexpr size_t kWorkPerQuestion = 64;

using StepsOfRank = std::function<void(int rank, ReaderTraining& on)>;

// What a rank has in the end.
struct Trained {
  std::string hash;
  std::vector<double> losses;
  std::vector<double> scales;
  int skipped = 0;
  int64_t launches = 0;
};

// The engine of every rank.
struct Told {
  bool captures = false;
  bool registers = false;
  int refuses = -1;  // this rank captures none
  MakeUnits make_units = UnitsOf(kSmallGpt);
};

// One result per rank.
inline std::vector<Trained> OnStreams(int ranks, const Plan& plan, const StepsOfRank& train,
                                      uint64_t seed, DType dtype, Told told,
                                      StreamFigures* figures = nullptr) {
  EmulatedCuda cuda({.seed = seed, .work_per_question = kWorkPerQuestion});
  std::vector<Trained> results(ranks);
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = ranks}, figures);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        CountingCuda counting(cuda);
        const std::unique_ptr<Device> device = MakeLateDevice(counting);
        EngineOptions options = {.registers_buffers = told.registers};
        if (told.captures) options.captures_steps = rank != told.refuses;
        ReaderTraining on(*communicators[rank], plan, device.get(), dtype, told.make_units,
                          options);
        train(rank, on);
        results[rank] = {on.Hash(), on.losses, on.scales, on.skipped,
                         counting.since_mark().graph_launches};
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
  return results;
}

// Does `train` on the host and on streams, where each rank launches `launches` graphs; all end
// alike.
inline void Compare(int ranks, const Plan& plan, int64_t launches, const StepsOfRank& train,
                    uint64_t seed = 1, DType dtype = DType::kF32, Told told = {.captures = true},
                    StreamFigures* figures = nullptr) {
  const auto host = OnRanks<Trained>(ranks, [&](Communicator& world) {
    ReaderTraining on(world, plan, nullptr, dtype, told.make_units);
    train(world.rank(), on);
    return Trained{on.Hash(), on.losses, on.scales, on.skipped};
  });
  const auto streams = OnStreams(ranks, plan, train, seed, dtype, told, figures);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(streams[rank].hash, host[rank].hash);
    EXPECT_EQ(streams[rank].scales, host[rank].scales);
    EXPECT_EQ(streams[rank].skipped, host[rank].skipped);
    ASSERT_EQ(streams[rank].losses.size(), host[rank].losses.size());
    EXPECT_LE(LargestRelativeDifference(streams[rank].losses, host[rank].losses), 1e-12);
    EXPECT_EQ(streams[rank].launches, launches) << "rank " << rank;
  }
}

inline Plan PlanOfSteps(int64_t accumulation, SumMode mode = SumMode::kFast) {
  Plan plan = SmallPlan(mode, accumulation);
  plan.learning_rate = {.kind = LearningRateSchedule::Kind::kCosine,
                        .peak = 3e-3,
                        .floor = 1e-4,
                        .warmup_steps = 2,
                        .total_steps = 8};
  plan.max_gradient_norm = 0.5;
  return plan;
}

}  // namespace muster::testing

// One rank with a model in units, and steps on batches of a reader: for tests of what the engine
// does with them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {

inline constexpr Engine::BatchSize kWhole = {.batch = kRows, .sequence = kSmallGpt.context};
inline constexpr Engine::BatchSize kHalf = {.batch = kRows, .sequence = kSmallGpt.context / 2};

// Then it grows again.
inline constexpr LossScaling kTooLargeAtFirst = {.kind = LossScaling::Kind::kTorch,
                                                 .initial = 0x1p127,
                                                 .window = 3,
                                                 .growth = 0x1p8,
                                                 .backoff = 0x1p-24};

// Declares a model, which lives as long as its units.
using MakeUnits = std::function<UnitModel(ParameterStore& store)>;

inline MakeUnits UnitsOf(const DecoderConfig& config) {
  return [config](ParameterStore& store) -> UnitModel {
    const std::shared_ptr<Decoder> gpt = *Decoder::Create(config, store);
    return [gpt, units = gpt->Units()](Tape& tape, UnitRange range, const ModelInput& input,
                                       absl::Span<const Activation> received) {
      return units(tape, range, input, received);
    };
  };
}

struct ReaderTraining {
  ReaderTraining(Communicator& world, const Plan& plan, const Device* device,
                 DType dtype = DType::kF32, const MakeUnits& make_units = UnitsOf(kSmallGpt),
                 EngineOptions options = {})
      : store(dtype, TensorRanks::Of(world.rank(), plan.tensor_ranks)) {
    store.PlaceOn(device);
    const UnitModel units = make_units(store);
    engine = *Engine::Create(
        world, store, plan,
        [this, units](Tape& tape, UnitRange range, const ModelInput& input,
                      absl::Span<const Activation> received) {
          before_forward(tape);
          return units(tape, range, input, received);
        },
        kWhole, std::move(options));
  }

  void Steps(int steps, const Engine::BatchSize& size = kWhole) {
    auto reader = engine->Read(text, size);
    ASSERT_THAT(reader, IsOk());
    for (int i = 0; i < steps; ++i) {
      const auto step = engine->Step(**reader);
      ASSERT_THAT(step, IsOk());
      losses.push_back(step->loss);
      rates.push_back(step->learning_rate);
      scales.push_back(step->loss_scale);
      skipped += step->skipped ? 1 : 0;
    }
  }
  std::string Hash() { return engine->ParameterHash().value_or("none"); }

  SmallText text;
  ParameterStore store;
  std::function<void(Tape& tape)> before_forward = [](Tape&) {};
  std::unique_ptr<Engine> engine;
  std::vector<double> losses, rates, scales;
  int skipped = 0;
};

}  // namespace muster::testing

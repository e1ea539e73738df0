// A small model that hands several activations from unit to unit: for tests of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "muster/layers.h"
#include "muster/pipeline.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {

// Declares units "u0", an embedding, and "u1" and so on, a linear map each.
struct EmbeddingAndMaps {
  static constexpr int64_t kVocabulary = 24;
  static constexpr int64_t kWidth = 32;  // of the embedding
  static constexpr int64_t kContext = 16;
  static constexpr int kUnits = 8;

  EmbeddingAndMaps(ParameterStore& store,
                   const std::function<Linear::Options(int unit)>& options_of) {
    for (int u = 0; u < kUnits; ++u) {
      store.BeginUnit(absl::StrCat("u", u));
      const Scope scope = Scope(store) / "u" / u;
      if (u == 0) {
        embedding = std::make_unique<Embedding>(
            scope,
            Embedding::Options{.vocabulary = kVocabulary, .context = kContext, .width = kWidth});
      } else {
        maps[u] = std::make_unique<Linear>(scope, options_of(u));
      }
    }
  }

  std::unique_ptr<Embedding> embedding;
  std::array<std::unique_ptr<Linear>, kUnits> maps;  // none of the first
};

// An encoder, whose output every unit of a decoder reads, of another width. Units pass on, in this
// order,
//   0, 1, 2: the encoder's activation
//   3, 4, 5: the decoder's, and what the encoder has made, as it is
//   6:       the same, and a constant
// and the last unit reads the decoder's and the constant alone.
class TwoStreams : private EmbeddingAndMaps {
 public:
  using EmbeddingAndMaps::kUnits;
  using EmbeddingAndMaps::kWidth;

  TwoStreams(ParameterStore& store, int64_t decoder_width)
      : EmbeddingAndMaps(store, [=](int unit) { return MapOf(unit, decoder_width); }) {}

  // Two stages meet before this unit.
  static std::vector<UnitCost> CostsForACutAt(int unit) {
    std::vector<UnitCost> costs;
    for (int u = 0; u < kUnits; ++u) {
      const bool is_beside = u == unit || u + 1 == unit;
      costs.push_back({absl::StrCat("u", u), is_beside ? 100.0 : 1.0});
    }
    return costs;
  }

  // The decoder is half as wide.
  static std::function<UnitModel(ParameterStore& store)> MakeUnits() {
    return [](ParameterStore& store) -> UnitModel {
      const auto model = std::make_shared<TwoStreams>(store, kWidth / 2);
      return [model](Tape& tape, UnitRange range, const ModelInput& input,
                     absl::Span<const Activation> received) {
        return model->Units()(tape, range, input, received);
      };
    };
  }

  UnitModel Units() const {
    return [this](Tape& tape, UnitRange units, const ModelInput& input,
                  absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
      std::vector<Activation> all(received.begin(), received.end());
      for (int u = units.first; u < units.end; ++u) {
        if (u == kUnits - 1) {
          const Activation x = Add(tape, all[0], all[2]);
          return StageOutput{.loss = CrossEntropy(tape, maps[u]->Forward(tape, x), input.targets)};
        }
        all = Forward(tape, u, input, std::move(all));
      }
      return StageOutput{.passed_on = std::move(all)};
    };
  }

 private:
  static Linear::Options MapOf(int unit, int64_t decoder_width) {
    if (unit < 3) return {.inputs = kWidth, .outputs = kWidth, .initial_std = 0.3};
    const bool is_last = unit + 1 == kUnits;
    return {.inputs = is_last ? decoder_width : kWidth,
            .outputs = is_last ? kVocabulary : decoder_width,
            .initial_std = 0.3};
  }

  std::vector<Activation> Forward(Tape& tape, int unit, const ModelInput& input,
                                  std::vector<Activation> all) const {
    if (unit == 0) return {embedding->Forward(tape, input.tokens)};
    const Nonlinear gelu(Nonlinearity::kGelu);
    if (unit < 3) return {gelu.Forward(tape, maps[unit]->Forward(tape, all[0]))};
    const Activation from_memory = maps[unit]->Forward(tape, all.back());
    if (unit == 3) return {from_memory, all[0]};
    all[0] = gelu.Forward(tape, Add(tape, all[0], from_memory));
    if (unit == 6) {
      const Tensor half = tape.pool().Allocate(all[0].value.dtype(), all[0].value.shape());
      tape.operations(half.dtype()).fill(tape.queue(), 0.5, half);
      all.push_back({.value = half});
    }
    return all;
  }
};

}  // namespace muster::testing

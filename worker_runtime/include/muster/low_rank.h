// An adapter beside a frozen layer: few numbers that learn what the layer's many would.
//
//   const Linear base(scope / "base", {.inputs = 64, .outputs = 64});
//   const LowRank adapter(scope / "adapter", {.inputs = 64, .outputs = 64, .rank = 4});
//   y = Add(tape, base.Forward(tape, x), adapter.Forward(tape, x));
//   plan.groups = {{.parameters = "*.base.*", .frozen = true}};
//
// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/layers.h"
#include "muster/parameter.h"
#include "muster/tape.h"

namespace muster {

// y = (x D^T) U^T. U is zero at first, so that an adapted model begins as its base.
//
// It computes in the type of D and U: x is converted to it, and y to the type of x.
class LowRank final : public Layer {
 public:
  struct Options {
    int64_t inputs = 0;
    int64_t outputs = 0;
    int64_t rank = 8;
    // Nothing: the store's. kF32 in a store of 16 bits, whose frozen layers then lie in 16 bits
    // under adapters of f32; or 16 bits in one of kF32.
    std::optional<DType> dtype = {};
    // That of the layer beside which it stands, and its sections (Linear::Options).
    Linear::Cut cut = Linear::Cut::kNone;
    std::vector<int64_t> sections = {};
  };
  // Declares D, "down" [rank, inputs], and U, "up" [outputs, rank], in the unit at hand: that of
  // the layer beside which it stands.
  LowRank(const Scope& scope, const Options& options);

  Activation Forward(Tape& tape, const Activation& x) const override;

 private:
  const Linear::Cut cut_;
  Parameter& down_;  // of the store, which outlives the model
  Parameter& up_;
};

// y = x W^T + b, and beside it what an adapter adds, where there is one.
class AdaptedLinear final : public Layer {
 public:
  // Declares Linear's parameters, and below `scope` the adapter's: "lora.down" and "lora.up".
  // `rank` 0: no adapter. `dtype`: LowRank::Options has it.
  AdaptedLinear(const Scope& scope, const Linear::Options& options, int64_t rank,
                std::optional<DType> dtype = std::nullopt);

  Activation Forward(Tape& tape, const Activation& x) const override;
  // residual + y
  Activation ForwardOnto(Tape& tape, const Activation& residual, const Activation& x) const;

  const Linear& base() const { return base_; }
  bool is_adapted() const { return adapter_ != nullptr; }

 private:
  const Linear base_;
  const std::unique_ptr<const LowRank> adapter_;  // null: there is none
};

}  // namespace muster

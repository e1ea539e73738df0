// Layers of a model with adapters beside them.
#include <memory>
#include <optional>

#include "muster/low_rank.h"

namespace muster {

AdaptedLinear::AdaptedLinear(const Scope& scope, const Linear::Options& options, int64_t rank,
                             std::optional<DType> dtype)
    : base_(scope, options),
      adapter_(rank == 0 ? nullptr
                         : std::make_unique<LowRank>(
                               scope / "lora", LowRank::Options{.inputs = options.inputs,
                                                                .outputs = options.outputs,
                                                                .rank = rank,
                                                                .dtype = dtype,
                                                                .cut = options.cut,
                                                                .sections = options.sections})) {}

Activation AdaptedLinear::Forward(Tape& tape, const Activation& x) const {
  const Activation y = base_.Forward(tape, x);
  return adapter_ == nullptr ? y : Add(tape, y, adapter_->Forward(tape, x));
}

Activation AdaptedLinear::ForwardOnto(Tape& tape, const Activation& residual,
                                      const Activation& x) const {
  if (adapter_ == nullptr) return base_.ForwardOnto(tape, residual, x);
  return base_.ForwardOnto(tape, Add(tape, residual, adapter_->Forward(tape, x)), x);
}

}  // namespace muster

// Adapters of low rank, by the public headers alone: the example of an operation of one's own.
#include "muster/low_rank.h"

#include <cmath>

#include "muster/arithmetic.h"

namespace muster {

// D is as wide as PEFT draws it: evenly between -1/sqrt(inputs) and 1/sqrt(inputs).
LowRank::LowRank(const Scope& scope, const Options& options)
    : down_(scope.Declare({.name = "down",
                           .shape = {options.rank, options.inputs},
                           .initializer = Initializer::Normal(
                               1 / std::sqrt(3 * static_cast<double>(options.inputs))),
                           .weight_decay = true})),
      up_(scope.Declare(
          {.name = "up", .shape = {options.outputs, options.rank}, .weight_decay = true})) {}

Activation LowRank::Forward(Tape& tape, const Activation& x) const {
  const Tensor h = TimesTransposed(tape, x.value, tape.Use(down_));
  const Tensor y = TimesTransposed(tape, h, tape.Use(up_));
  const auto inputs = [&down = down_, &up = up_, slot = x.slot](Tape& on, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    on.AddGradient(slot, Times(on, Times(on, dy, up.value()), down.value()));
  };
  const auto weights = [&down = down_, &up = up_, h, x = x.value](Tape& on, const Tensor& dy) {
    AddProductGradient(on, up, dy, h);
    AddProductGradient(on, down, Times(on, dy, up.value()), x);
  };
  return tape.Record(y, {&down_, &up_}, inputs, weights);
}

}  // namespace muster

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
                           .weight_decay = true,
                           .dtype = options.dtype})),
      up_(scope.Declare({.name = "up",
                         .shape = {options.outputs, options.rank},
                         .weight_decay = true,
                         .dtype = options.dtype})) {}

Activation LowRank::Forward(Tape& tape, const Activation& x) const {
  const Tensor h = TimesTransposed(tape, Cast(tape, x.value, down_.dtype()), tape.Use(down_));
  const Tensor y = TimesTransposed(tape, h, tape.Use(up_));
  const auto inputs = [&down = down_, &up = up_, slot = x.slot](Tape& on, const Tensor& dy) {
    if (slot == Activation::kNoGradient) return;
    const Tensor dh = Times(on, Cast(on, dy, up.dtype()), up.value());
    on.AddGradient(slot, Cast(on, Times(on, dh, down.value()), dy.dtype()));
  };
  // x is kept in its own type, which may be half as long as theirs.
  const auto weights = [&down = down_, &up = up_, h, x = x.value](Tape& on, const Tensor& dy) {
    const Tensor own_dy = Cast(on, dy, up.dtype());
    AddProductGradient(on, up, own_dy, h);
    AddProductGradient(on, down, Times(on, own_dy, up.value()), Cast(on, x, down.dtype()));
  };
  return tape.Record(Cast(tape, y, x.value.dtype()), {&down_, &up_}, inputs, weights);
}

}  // namespace muster

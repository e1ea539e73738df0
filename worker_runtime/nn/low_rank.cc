// Adapters of low rank, by the public headers alone: the example of an operation of one's own.
#include "muster/low_rank.h"

#include <cmath>
#include <memory>

#include "muster/arithmetic.h"

namespace muster {

namespace {

// D is as wide as PEFT draws it: evenly between -1/sqrt(inputs) and 1/sqrt(inputs).
ParameterSpec DownOf(const LowRank::Options& options) {
  const double width = 1 / std::sqrt(3 * static_cast<double>(options.inputs));
  ParameterSpec down = {.name = "down",
                        .shape = {options.rank, options.inputs},
                        .initializer = Initializer::Normal(width),
                        .weight_decay = true,
                        .dtype = options.dtype};
  if (options.cut == Linear::Cut::kInputs) down.cut = ParameterCut{.axis = 1};
  return down;
}

ParameterSpec UpOf(const LowRank::Options& options) {
  ParameterSpec up = {.name = "up",
                      .shape = {options.outputs, options.rank},
                      .weight_decay = true,
                      .dtype = options.dtype};
  if (options.cut == Linear::Cut::kOutputs) up.cut = ParameterCut{0, options.sections};
  return up;
}

}  // namespace

LowRank::LowRank(const Scope& scope, const Options& options)
    : cut_(options.cut), down_(scope.Declare(DownOf(options))), up_(scope.Declare(UpOf(options))) {}

// Tensor ranks make parts of h where D is cut, and of its gradient where U is.
Activation LowRank::Forward(Tape& tape, const Activation& x) const {
  const Tensor h = TimesTransposed(tape, Cast(tape, x.value, down_.dtype()), tape.Use(down_));
  if (cut_ == Linear::Cut::kInputs) up_.store().AddUp(h);
  const Tensor y = TimesTransposed(tape, h, tape.Use(up_));
  const auto dh = std::make_shared<Tensor>();  // for both halves of a backward pass
  const auto inputs = [this, dh, slot = x.slot](Tape& on, const Tensor& dy) {
    *dh = Times(on, Cast(on, dy, up_.dtype()), up_.value());
    if (cut_ == Linear::Cut::kOutputs) up_.store().AddUp(*dh);
    if (slot == Activation::kNoGradient) return;
    on.AddGradient(slot, Cast(on, Times(on, *dh, down_.value()), dy.dtype()));
  };
  // x is kept in its own type, which may be half as long as theirs.
  const auto weights = [this, dh, h, x = x.value](Tape& on, const Tensor& dy) {
    AddProductGradient(on, up_, Cast(on, dy, up_.dtype()), h);
    AddProductGradient(on, down_, *dh, Cast(on, x, down_.dtype()));
  };
  return tape.Record(Cast(tape, y, x.value.dtype()), {&down_, &up_}, inputs, weights);
}

}  // namespace muster

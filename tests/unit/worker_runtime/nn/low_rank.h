// An operation of a program's own, written with the public headers alone: the one that
// worker_runtime/README.md refers to.
#pragma once

#include "muster/arithmetic.h"
#include "muster/layers.h"

namespace muster::testing {

// y = (x D^T) U^T, with x and y [rows, width], D [rank, width] and U [width, rank]: an adapter
// beside a frozen layer. (Hu et al., "LoRA", 2021)
class LowRank final : public Layer {
 public:
  LowRank(const Scope& scope, int64_t width, int64_t rank)
      : down_(scope.Declare({"down", {rank, width}, Initializer::Normal(0.5)})),
        up_(scope.Declare({"up", {width, rank}, Initializer::Normal(0.1)})) {}

  Activation Forward(Tape& tape, const Activation& x) const override {
    const Tensor h = TimesTransposed(tape, x.value, tape.Use(down_));
    const Tensor y = TimesTransposed(tape, h, tape.Use(up_));
    const auto inputs = [&down = down_, &up = up_, slot = x.slot](Tape& on, const Tensor& dy) {
      on.AddGradient(slot, Times(on, Times(on, dy, up.value()), down.value()));
    };
    const auto weights = [&down = down_, &up = up_, h, x = x.value](Tape& on, const Tensor& dy) {
      AddProductGradient(on, up, dy, h);
      AddProductGradient(on, down, Times(on, dy, up.value()), x);
    };
    return tape.Record(y, {&down_, &up_}, inputs, weights);
  }

 private:
  Parameter& down_;
  Parameter& up_;
};

}  // namespace muster::testing

// An operation of a program's own, written with the public headers alone: the one that
// worker_runtime/README.md refers to.
#include <gtest/gtest.h>

#include "muster/arithmetic.h"
#include "muster/layers.h"
#include "tests/unit/worker_runtime/nn/finite_difference.h"

namespace muster {
namespace {

// y = (x D^T) U^T, with x and y [rows, width], D [rank, width] and U [width, rank]: an adapter beside a
// frozen layer. (Hu et al., "LoRA", 2021)
class LowRank final : public Layer {
 public:
  LowRank(const Scope& scope, int64_t width, int64_t rank)
      : down_(scope.Declare({"down", {rank, width}, Initializer::Normal(0.5)})),
        up_(scope.Declare({"up", {width, rank}})) {}

  Activation Forward(Tape& tape, const Activation& x) const override {
    const int64_t width = up_.shape()[0], rank = up_.shape()[1];
    const int64_t rows = x.value.num_elements() / width;
    const auto product = [=](Tape& on, Shape shape, Product of, const Tensor& a, const Tensor& b) {
      Tensor c = on.pool().Allocate(a.dtype(), shape);
      Multiply(on, of, a, b, c);
      return c;
    };
    const Product down = {.m = rows, .n = rank, .k = width, .transpose_b = true};
    const Product up = {.m = rows, .n = width, .k = rank, .transpose_b = true};
    const Tensor h = product(tape, {rows, rank}, down, x.value, tape.Use(down_));
    const Tensor y = product(tape, x.value.shape(), up, h, tape.Use(up_));
    const auto gradient_of_h = [=, &up = up_](Tape& on, const Tensor& dy) {
      return product(on, {rows, rank}, {.m = rows, .n = rank, .k = width}, dy, up.value());
    };
    const auto inputs = [=, &down = down_, slot = x.slot, shape = x.value.shape()](
                            Tape& on, const Tensor& dy) {
      const Product to_x = {.m = rows, .n = width, .k = rank};
      on.AddGradient(slot, product(on, shape, to_x, gradient_of_h(on, dy), down.value()));
    };
    const auto weights = [=, &down = down_, &up = up_, x = x.value](Tape& on, const Tensor& dy) {
      WriteGradient(up, [&](const Tensor& to, bool add) {
        Multiply(on, {width, rank, rows, true, false, add}, dy, h, to);
      });
      WriteGradient(down, [&](const Tensor& to, bool add) {
        Multiply(on, {rank, width, rows, true, false, add}, gradient_of_h(on, dy), x, to);
      });
    };
    return tape.Record(y, {&down_, &up_}, inputs, weights);
  }

 private:
  Parameter& down_;
  Parameter& up_;
};

TEST(OwnOperation, HasTheGradientsOfItsFormula) {
  ParameterStore store(DType::kF64);
  const LowRank layer(Scope(store), 7, 2);
  muster::testing::LayerUnderTest test(
      store, {2, 3, 7}, [&](Tape& tape, const Activation& x) { return layer.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST(OwnOperation, LearnsBesideAFrozenLayerAndInARecomputedRegion) {
  ParameterStore store(DType::kF64);
  const Linear linear(Scope(store) / "base", {.inputs = 7, .outputs = 7, .initial_std = 0.5});
  const LowRank layer(Scope(store) / "adapter", 7, 2);
  store.Find("base.weight")->Freeze();
  store.Find("base.bias")->Freeze();
  store.BindToOwnBuffers();
  store.Initialize(5);
  for (double& value : store.flat_values().span<double>()) value += 0.1;
  TensorPool pool;
  Tape tape(pool);
  auto numbers = muster::testing::RandomNumbers<double>(21, "x");
  const Tensor input = Tensor::Borrow(numbers.data(), DType::kF64, {3, 7});
  const auto gradient = [&](bool recompute) {
    store.ForgetGradients();
    const auto both = [&](Tape& on, const Activation& x) {
      return Add(on, linear.Forward(on, x), layer.Forward(on, x));
    };
    const Activation x = {input};  // wants no gradient
    const Activation y = recompute ? tape.Recomputed(x, both) : both(tape, x);
    tape.Backward(y, Tensor::Borrow(numbers.data(), DType::kF64, {3, 7}));
    const auto span = store.Find("adapter.down")->gradient().span<double>();
    return std::vector<double>(span.begin(), span.end());
  };
  const auto kept = gradient(false);
  EXPECT_NE(kept[0], 0);
  EXPECT_EQ(gradient(true), kept);
  EXPECT_FALSE(store.Find("base.weight")->has_gradient());
}

}  // namespace
}  // namespace muster

// An operation of a program's own: low_rank.h. Under sharded plans: engine_own_operation_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "tests/support/files.h"
#include "tests/unit/worker_runtime/nn/finite_difference.h"
#include "tests/unit/worker_runtime/nn/low_rank.h"

namespace muster {
namespace {

using ::muster::testing::LowRank;

TEST(OwnOperation, TakesLessThanThirtyLines) {
  const std::string text = muster::testing::ReadFile(
      absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/unit/worker_runtime/nn/low_rank.h"));
  const size_t begin = text.find("class LowRank");
  const size_t end = text.find("\n};", begin);
  ASSERT_NE(end, std::string::npos);
  EXPECT_LT(std::count(text.begin() + begin, text.begin() + end, '\n') + 2, 30);
}

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

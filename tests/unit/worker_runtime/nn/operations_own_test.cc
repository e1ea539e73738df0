// An operation by the public headers alone, low_rank.h. engine_own_operation_test.cc shards it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/arithmetic.h"
#include "muster/layers.h"
#include "muster/low_rank.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/nn/finite_difference.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

TEST(OwnOperation, TakesLessThanThirtyLines) {
  const std::string text = muster::testing::ReadFile(
      absl::StrCat(testing::kSourceDirectory, "/worker_runtime/nn/low_rank.cc"));
  const size_t begin = text.find("LowRank::LowRank");
  const size_t end = text.find("}  // namespace", begin);
  ASSERT_NE(end, std::string::npos);
  EXPECT_LT(std::count(text.begin() + begin, text.begin() + end, '\n'), 30);
}

TEST(OwnOperation, HasTheGradientsOfItsFormula) {
  ParameterStore store(DType::kF64);
  const LowRank layer(Scope(store), {.inputs = 7, .outputs = 5, .rank = 2});
  muster::testing::LayerUnderTest test(
      store, {2, 3, 7}, [&](Tape& tape, const Activation& x) { return layer.Forward(tape, x); });
  test.ExpectGradientsEqualSlopes();
}

TEST(LowRank, AddsNothingBeforeItHasLearned) {
  ParameterStore store;
  const LowRank layer(Scope(store), {.inputs = 7, .outputs = 5, .rank = 2});
  store.BindToOwnBuffers();
  store.Initialize(5);
  TensorPool pool;
  Tape tape(pool);
  auto numbers = muster::testing::RandomNumbers<float>(21, "x");
  const Tensor y = layer.Forward(tape, {Tensor::Borrow(numbers.data(), DType::kF32, {3, 7})}).value;
  ASSERT_EQ(y.shape(), (Shape{3, 5}));
  for (const float number : y.span<float>()) EXPECT_EQ(number, 0);
}

// What a layer of f32 makes of the same numbers, rounded once.
TEST(LowRank, OfF32ComputesInF32BetweenActivationsOf16Bits) {
  for (const DType narrow : {DType::kBf16, DType::kF16}) {
    ParameterStore wide_store;
    ParameterStore store(narrow);
    const LowRank wide(Scope(wide_store), {.inputs = 7, .outputs = 5, .rank = 2});
    const LowRank layer(Scope(store), {.inputs = 7, .outputs = 5, .rank = 2, .dtype = DType::kF32});
    TensorPool pool;
    Tape tape(pool);
    const auto random = [&](const std::string& name, const Shape& shape) {
      auto numbers = muster::testing::RandomNumbers<float>(shape.num_elements(), name);
      const Tensor own = Tensor::Borrow(numbers.data(), DType::kF32, shape);
      return Cast(tape, own, narrow);  // copies
    };
    for (ParameterStore* each : {&wide_store, &store}) {
      each->BindToOwnBuffers();
      each->Initialize(5);
      for (float& number : each->Find("up")->value().span<float>()) number = 0.37F;
    }
    EXPECT_EQ(store.Find("down")->value().dtype(), DType::kF32);
    const Tensor x = random("x", {3, 7});
    const Tensor dy = random("dy", {3, 5});
    const auto run = [&](const LowRank& of, DType dtype) {
      const Activation in = tape.Watch(Cast(tape, x, dtype));
      const Activation y = of.Forward(tape, in);
      tape.Backward(y, Cast(tape, dy, dtype));
      return std::pair(y.value, tape.TakeGradient(in));
    };
    const auto [wide_y, wide_dx] = run(wide, DType::kF32);
    const auto [y, dx] = run(layer, narrow);
    ASSERT_EQ(y.dtype(), narrow);
    ASSERT_EQ(dx.dtype(), narrow);
    const auto is_rounded = [&](const Tensor& rounded, const Tensor& from) {
      const Tensor expected = Cast(tape, Cast(tape, from, narrow), DType::kF32);
      return muster::testing::SameBits(Cast(tape, rounded, DType::kF32).span<float>(),
                                       expected.span<float>());
    };
    EXPECT_TRUE(is_rounded(y, wide_y));
    EXPECT_TRUE(is_rounded(dx, wide_dx));
    for (const char* name : {"down", "up"}) {
      EXPECT_TRUE(muster::testing::SameBits(store.Find(name)->gradient().span<float>(),
                                            wide_store.Find(name)->gradient().span<float>()))
          << name;
    }
  }
}

TEST(Cast, FromF64IsRefusedInASentence) {
  TensorPool pool;
  Tape tape(pool);
  EXPECT_TRUE(Cast(tape, pool.Allocate(DType::kF64, {3}), DType::kF32).empty());
  EXPECT_THAT(tape.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      "Cast: from f64 to f32; expected f32 and bf16 or f16"));
}

TEST(Arithmetic, OfDifferentTypesIsRefusedInASentence) {
  TensorPool pool;
  const Tensor x = pool.Allocate(DType::kF32, {3, 4});
  const Tensor w = pool.Allocate(DType::kBf16, {4, 4});
  const auto refusal = [&](const std::function<void(Tape&)>& compute) {
    Tape tape(pool);
    compute(tape);
    return std::string(tape.status().message());
  };
  const std::string types = ": f32 and bf16 are different types; convert one of them by Cast";
  EXPECT_EQ(refusal([&](Tape& tape) { EXPECT_TRUE(Times(tape, x, w).empty()); }), "Times" + types);
  EXPECT_EQ(refusal([&](Tape& tape) { EXPECT_TRUE(TimesTransposed(tape, x, w).empty()); }),
            "TimesTransposed" + types);
  EXPECT_EQ(refusal([&](Tape& tape) { Multiply(tape, {.m = 3, .n = 4, .k = 4}, x, w, x); }),
            "Multiply" + types);
  const Tensor y = pool.Allocate(DType::kBf16, {3, 4});
  EXPECT_EQ(refusal([&](Tape& tape) { AddTensors(tape, x, y, x); }), "AddTensors" + types);
  ParameterStore store;
  Parameter& weight = store.Declare({.name = "w", .shape = {4, 4}});
  EXPECT_EQ(refusal([&](Tape& tape) { AddProductGradient(tape, weight, x, y); }),
            "AddProductGradient to w" + types);
}

TEST(OwnOperation, LearnsBesideAFrozenLayerAndInARecomputedRegion) {
  ParameterStore store(DType::kF64);
  const Linear linear(Scope(store) / "base", {.inputs = 7, .outputs = 7, .initial_std = 0.5});
  const LowRank layer(Scope(store) / "adapter", {.inputs = 7, .outputs = 7, .rank = 2});
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

// y = x D^T, whose gradient of the input multiplies by something else.
Activation WithAWrongGradient(Tape& tape, Parameter& down, const Activation& x) {
  const Tensor y = TimesTransposed(tape, x.value, tape.Use(down));
  return tape.Record(
      y, {&down},
      [&down, slot = x.slot](Tape& on, const Tensor& dy) {
        on.AddGradient(slot, TimesTransposed(on, dy, down.value()));
      },
      [&down](Tape& on, const Tensor& dy) { AddProductGradient(on, down, dy, dy); });
}

class WrongOperation : public ::testing::Test {
 protected:
  WrongOperation()
      : layer_(Scope(store_) / "adapter", {.inputs = 7, .outputs = 7, .rank = 2}),
        down_(*store_.Find("adapter.down")) {
    store_.BindToOwnBuffers();
    store_.Initialize(5);
  }

  ParameterStore store_{DType::kF64};
  const LowRank layer_;
  Parameter& down_;
  TensorPool pool_;
};

TEST_F(WrongOperation, OfAWrongInputFailsThePassWithBothShapes) {
  for (const bool recompute : {false, true}) {
    Tape tape(pool_);
    const Activation x = tape.Watch(pool_.Allocate(DType::kF64, {3, 6}));
    const auto forward = [&](Tape& on, const Activation& in) { return layer_.Forward(on, in); };
    const Activation y = recompute ? tape.Recomputed(x, forward) : forward(tape, x);
    EXPECT_TRUE(y.value.empty());
    EXPECT_THAT(tape.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("TimesTransposed: [3, 6] and [2, 7] do not fit")));
  }
}

TEST_F(WrongOperation, WhoseGradientsDoNotFitFailsTheReplay) {
  for (const bool recompute : {false, true}) {
    Tape tape(pool_);
    const Activation x = tape.Watch(pool_.Allocate(DType::kF64, {3, 7}));
    const auto forward = [&](Tape& on, const Activation& in) {
      return WithAWrongGradient(on, down_, in);
    };
    const Activation y = recompute ? tape.Recomputed(x, forward) : forward(tape, x);
    EXPECT_THAT(tape.status(), IsOk());
    const Tensor dy = pool_.Allocate(DType::kF64, {3, 2});
    tape.operations(DType::kF64).clear(tape.queue(), dy);
    tape.Backward(y, dy);
    EXPECT_THAT(tape.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("TimesTransposed: [3, 2] and [2, 7] do not fit")));
    EXPECT_TRUE(tape.TakeGradient(x).empty());
    EXPECT_FALSE(down_.has_gradient());
    // The next pass starts over.
    const Activation again = tape.Watch(pool_.Allocate(DType::kF64, {3, 7}));
    EXPECT_FALSE(layer_.Forward(tape, again).value.empty());
    EXPECT_THAT(tape.status(), IsOk());
  }
}

TEST_F(WrongOperation, OfProductsAndSumsNamesTheShapes) {
  Tape tape(pool_);
  const Tensor a = pool_.Allocate(DType::kF64, {2, 3});
  const Tensor b = pool_.Allocate(DType::kF64, {4});
  Multiply(tape, {.m = 2, .n = 2, .k = 3}, a, b, b);
  EXPECT_THAT(tape.status().message(),
              HasSubstr("Multiply with m 2, n 2, k 3: [2, 3] and [4] and [4] do not fit"));
  tape.Clear();
  AddTensors(tape, a, b, a);
  EXPECT_THAT(tape.status().message(), HasSubstr("AddTensors: [2, 3] and [4] and [2, 3]"));
  tape.Clear();
  EXPECT_TRUE(Times(tape, a, a).empty());
  EXPECT_THAT(tape.status().message(), HasSubstr("Times: [2, 3] and [2, 3] do not fit"));
}

}  // namespace
}  // namespace muster

// Gradients from the tape against central differences, in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "muster/layers.h"
#include "muster/parameter.h"
#include "muster/tape.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace muster::testing {

// A scalar function of `numbers`, which it reads at every call.
inline double Slope(double& number, const std::function<double()>& function) {
  constexpr double kStep = 1e-5;
  const double before = number;
  number = before + kStep;
  const double above = function();
  number = before - kStep;
  const double below = function();
  number = before;
  return (above - below) / (2 * kStep);
}

// Every `stride`-th gradient equals the slope to `tolerance`, relative to the largest slope met
// (the error of a central difference is about 1e-10 of the function's size).
inline void ExpectSlopes(absl::Span<double> numbers, absl::Span<const double> gradient,
                         const std::function<double()>& function, double tolerance,
                         const std::string& what, size_t stride = 1) {
  ASSERT_EQ(numbers.size(), gradient.size()) << what;
  std::vector<double> slopes, gradients;
  for (size_t i = 0; i < numbers.size(); i += stride) {
    slopes.push_back(Slope(numbers[i], function));
    gradients.push_back(gradient[i]);
  }
  double largest = 0;
  for (const double slope : slopes) largest = std::max(largest, std::fabs(slope));
  for (size_t i = 0; i < slopes.size(); ++i) {
    ASSERT_NEAR(gradients[i], slopes[i], tolerance * (largest + 1e-3))
        << what << " at " << i * stride;
  }
}

// A layer under test: sum(weights * f(x)) over a fixed random `weights`, and its gradients.
class LayerUnderTest {
 public:
  using Function = std::function<Activation(Tape&, const Activation&)>;

  LayerUnderTest(ParameterStore& store, Shape input, Function function)
      : store_(store),
        function_(std::move(function)),
        numbers_(RandomNumbers<double>(input.num_elements(), "input")),
        input_(Tensor::Borrow(numbers_.data(), DType::kF64, input)) {
    store_.BindToOwnBuffers();
    store_.Initialize(5);
    // Away from the special values 0 and 1 that biases and norms start with.
    for (double& value : store_.flat_values().span<double>()) value += 0.1;
  }

  double Value() {
    Tape tape(pool_, Tape::Mode::kInference);
    const Activation y = function_(tape, {input_});
    const auto weights = WeightsFor(y);
    double sum = 0;
    for (int64_t i = 0; i < y.value.num_elements(); ++i) {
      sum += weights[i] * y.value.data<double>()[i];
    }
    return sum;
  }

  void ExpectGradientsEqualSlopes(double tolerance = 1e-7) {
    Tape tape(pool_);
    const Activation x = tape.Watch(input_);
    const Activation y = function_(tape, x);
    auto weights = WeightsFor(y);
    store_.ForgetGradients();
    tape.Backward(y, Tensor::Borrow(weights.data(), DType::kF64, y.value.shape()));
    const Tensor dx = tape.TakeGradient(x);
    const auto value = [this] { return Value(); };
    ASSERT_FALSE(dx.empty());
    ExpectSlopes(absl::MakeSpan(numbers_), dx.span<double>(), value, tolerance, "input");
    for (const auto& parameter : store_.parameters()) {
      ASSERT_TRUE(parameter->has_gradient()) << parameter->name();
      ExpectSlopes(parameter->value().span<double>(), parameter->gradient().span<double>(), value,
                   tolerance, parameter->name());
    }
  }

 private:
  std::vector<double> WeightsFor(const Activation& y) {
    return RandomNumbers<double>(y.value.num_elements(), "weights");
  }

  ParameterStore& store_;  // of the test
  TensorPool pool_;
  Function function_;
  std::vector<double> numbers_;
  Tensor input_;
};

}  // namespace muster::testing

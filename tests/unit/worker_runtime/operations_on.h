// Operations on a device, from numbers that are the same in every type: what they give, and the
// memory that they take.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/sixteen_bits.h"
#include "tests/unit/worker_runtime/cuda/device_numbers.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {

class OperationsOn {
 public:
  // What each of them is called for. Gradients of weights are of `gradients`.
  using Call = void (OperationsOn::*)();
  static const std::vector<std::pair<std::string, Call>>& Calls() {
    static const std::vector<std::pair<std::string, Call>> calls = {
        {"products without a bias", &OperationsOn::WithoutBias},
        {"embedding without positions", &OperationsOn::WithoutPositions},
        {"SwiGLU", &OperationsOn::SwiGlu},
        {"layer norm", &OperationsOn::LayerNorm},
        {"RMS norm", &OperationsOn::RmsNorm},
        {"norm of heads", &OperationsOn::NormOfHeads},
        {"rotary", &OperationsOn::Rotary}};
    return calls;
  }

  OperationsOn(const Device& device, DType dtype, DType gradients, Call call)
      : device_(device), pool_(device), queue_(device, &pool_), dtype_(dtype), of_(gradients) {
    (this->*call)();
  }

  // They stand in the order in which they were kept; on meta there are none.
  std::vector<std::vector<float>> results;
  size_t bytes_peak() const { return pool_.usage().bytes_in_use_peak; }

 private:
  // Numbers that bf16 and f16 have.
  Tensor Make(const char* name, const Shape& shape) { return Make(name, shape, dtype_); }
  Tensor Make(const char* name, const Shape& shape, DType dtype) {
    auto numbers = RandomNumbers<float>(shape.num_elements(), name);
    for (float& number : numbers) number = FromBf16(ToBf16(number));
    return OnDevice(pool_, dtype, numbers).Reshaped(shape);
  }
  void Keep(const Tensor& x) {
    if (device_.has_elements()) results.push_back(OnHost(device_, x));
  }
  const Operations& table() const { return device_.operations(dtype_); }

  void WithoutBias() {
    const Tensor x = Make("x", {2, 5, 24}), weight = Make("w", {16, 24});
    const Tensor residual = Make("r", {2, 5, 16}), y = Make("y", {2, 5, 16});
    const Tensor pre = Make("pre", {2, 5, 16}), dweight = Make("dw", {16, 24}, of_);
    const Operations::Linear in = {.x = x, .weight = weight, .bias = {}};
    table().linear_forward(queue_, in, {}, y);
    Keep(y);
    table().linear_forward(queue_, in, residual, y);
    Keep(y);
    table().linear_gelu(queue_, in, pre, y);
    Keep(pre);
    Keep(y);
    for (const bool accumulate : {false, true}) {
      table().linear_weight(queue_, residual, x, {.to = dweight, .accumulate = accumulate},
                            {.to = Tensor(), .accumulate = accumulate});
      Keep(dweight);
    }
  }

  void WithoutPositions() {
    const kernels::EmbeddingShape shape = {
        .batch = 2, .sequence = 5, .width = 24, .first_position = 3};
    const auto ids = RandomTokens(10, 7);
    const Tensor tokens = pool_.Allocate(DType::kF32, {10});  // as wide
    device_.Upload(queue_, ids.data(), tokens.raw_data(), tokens.num_bytes());
    const auto* const on_device = static_cast<const int32_t*>(tokens.raw_data());
    const Tensor weights = Make("table", {7, 24}), y = Make("y", {2, 5, 24});
    const Tensor dweights = Make("dtable", {7, 24}, of_);
    table().embedding_forward(queue_, shape, on_device, weights, {}, y);
    Keep(y);
    table().embedding_gradient(queue_, shape, on_device, y, dweights, {});
    Keep(dweights);
  }

  void SwiGlu() {
    const Tensor gate_up = Make("gate up", {2, 5, 48}), y = Make("y", {2, 5, 24});
    const Tensor dy = Make("dy", {2, 5, 24});
    table().swiglu_forward(queue_, gate_up, y);
    Keep(y);
    table().swiglu_backward(queue_, gate_up, dy, gate_up);
    Keep(gate_up);
  }

  void LayerNorm() { NormOf({.rows = 10, .width = 72}, {2, 5, 72}); }
  void RmsNorm() { NormOf({.kind = kernels::NormKind::kRms, .rows = 10, .width = 72}, {2, 5, 72}); }
  // The heads are two of 24, from element 8 on.
  void NormOfHeads() { NormOf({kernels::NormKind::kRms, 20, 24, 2, 72, 8}, {2, 5, 72}); }
  // The norm writes to other arrays, whose rest stays, and in place.
  void NormOf(const kernels::NormShape& shape, const Shape& lines) {
    const bool is_rms = shape.kind == kernels::NormKind::kRms;
    const Tensor x = Make("x", lines), dy = Make("dy", lines), y = Make("y", lines);
    const Tensor gamma = Make("gamma", {shape.width}), dgamma = Make("dgamma", {shape.width}, of_);
    const Tensor beta = is_rms ? Tensor() : Make("beta", {shape.width});
    const Tensor dbeta = is_rms ? Tensor() : Make("dbeta", {shape.width}, of_);
    const Tensor saved = pool_.Allocate(StatisticsType(dtype_), {is_rms ? 1 : 2, shape.rows});
    const Operations::Norm in = {.x = x, .gamma = gamma, .saved = saved, .shape = shape};
    table().norm_forward(queue_, in, beta, 1e-5, y);
    Keep(y);
    Keep(saved);
    table().norm_backward(
        queue_, in, dy,
        {.addend = {}, .dx = dy, .dgamma = dgamma, .dbeta = dbeta, .accumulate = true});
    for (const Tensor& gradient : {dy, dgamma, dbeta}) {
      if (!gradient.empty()) Keep(gradient);
    }
    table().norm_forward(queue_, in, beta, 1e-5, x);
    Keep(x);
  }

  // Two of the three heads in a line are turned, there and back.
  void Rotary() {
    kernels::RotaryFrequencies frequencies;
    for (size_t i = 0; i < 4; ++i) frequencies.of_pair[i] = std::pow(10, -static_cast<double>(i));
    kernels::RotaryShape shape = {
        .batch = 2, .sequence = 5, .heads = 2, .head_width = 8, .line = 24, .first_position = 1000};
    const Tensor x = Make("x", {2, 5, 24});
    Keep(x);
    table().rotary(queue_, shape, frequencies, x);
    Keep(x);
    shape.inverse = true;
    table().rotary(queue_, shape, frequencies, x);
    Keep(x);
  }

  const Device& device_;
  TensorPool pool_;
  Queue queue_;
  const DType dtype_, of_;
};

// Both have the same results, but for so much of the largest number of each.
inline void ExpectNear(const OperationsOn& actual, const OperationsOn& expected, double tolerance) {
  ASSERT_EQ(actual.results.size(), expected.results.size());
  for (size_t i = 0; i < actual.results.size(); ++i) {
    EXPECT_LE(RelativeError(actual.results[i], expected.results[i]), tolerance) << "result " << i;
  }
}

}  // namespace muster::testing

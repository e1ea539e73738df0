// Operations and layers in 16 bits beside the same in f32.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "muster/decoder.h"
#include "muster/sixteen_bits.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "tests/unit/worker_runtime/operations_on.h"

namespace muster {
namespace {

double Element(const Tensor& tensor, int64_t i) {
  const auto* bits = static_cast<const uint16_t*>(tensor.raw_data());
  if (tensor.dtype() == DType::kF32) return tensor.data<float>()[i];
  return tensor.dtype() == DType::kBf16 ? FromBf16(bits[i]) : FromF16(bits[i]);
}

struct Passes {
  explicit Passes(DType dtype) : store(dtype) {
    gpt = *Decoder::Create(
        {.layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 24}, store);
    store.BindToOwnBuffers();
    store.Initialize(1);
  }
  // The loss of a fixed batch; gradients are those of scale * loss.
  double Run(double scale) {
    const auto tokens = muster::testing::RandomTokens(33, 24);
    const absl::Span<const int32_t> all(tokens);
    Tape tape(pool);
    store.ForgetGradients();
    const Loss loss = gpt->ComputeLoss(tape, {all.first(32), 2, 16}, all.subspan(1, 32));
    tape.Backward(loss.output, scale);
    return loss.mean();
  }

  ParameterStore store;
  std::unique_ptr<Decoder> gpt;
  TensorPool pool;
};

class Narrow : public ::testing::TestWithParam<DType> {};

TEST_P(Narrow, HasTheLossAndTheGradientsOfTheSameWeightsInF32) {
  const double tolerance = GetParam() == DType::kBf16 ? 3e-2 : 4e-3;  // bf16 has 8 digits, f16 11
  constexpr double kScale = 64;
  Passes narrow(GetParam()), wide(DType::kF32);
  for (int64_t i = 0; i < wide.store.num_elements(); ++i) {
    wide.store.flat_values().data<float>()[i] = Element(narrow.store.flat_values(), i);
  }
  EXPECT_NEAR(narrow.Run(kScale) / wide.Run(kScale), 1, tolerance / 10);
  for (const auto& parameter : narrow.store.parameters()) {
    const Tensor& expected = wide.store.Find(parameter->name())->gradient();
    double difference = 0, size = 0;
    for (int64_t i = 0; i < expected.num_elements(); ++i) {
      difference += std::pow(Element(parameter->gradient(), i) - Element(expected, i), 2);
      size += std::pow(Element(expected, i), 2);
    }
    EXPECT_LT(std::sqrt(difference / size), tolerance) << parameter->name();
  }
}

TEST_P(Narrow, OperationsGiveThoseOfF32Rounded) {
  using muster::testing::OperationsOn;
  const double tolerance = GetParam() == DType::kBf16 ? 4.5e-3 : 6e-4;
  for (const auto& [name, call] : OperationsOn::Calls()) {
    SCOPED_TRACE(name);
    const OperationsOn wide(Device::Cpu(), DType::kF32, DType::kF32, call);
    for (const DType gradients : {GetParam(), DType::kF32}) {
      ExpectNear(OperationsOn(Device::Cpu(), GetParam(), gradients, call), wide, tolerance);
    }
  }
}

TEST_P(Narrow, WritesText) {
  Passes passes(GetParam());
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto text = Generate(*passes.gpt, passes.pool, prompt, {.num_tokens = 40});
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->size(), 40);
}

INSTANTIATE_TEST_SUITE_P(Types, Narrow, ::testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& type) { return std::string(ToString(type.param)); });

}  // namespace
}  // namespace muster

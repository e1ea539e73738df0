#include "worker_runtime/train/peak_rates.h"

#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(PeakOperations, AreKnownByTheNamesThatCudaGives) {
  EXPECT_EQ(PeakOperations("NVIDIA H100 80GB HBM3", DType::kBf16), 989e12);
  EXPECT_EQ(PeakOperations("NVIDIA H100 PCIe", DType::kBf16), 756e12);
  EXPECT_EQ(PeakOperations("NVIDIA A100-SXM4-80GB", DType::kF16), 312e12);
  EXPECT_EQ(PeakOperations("NVIDIA A100-SXM4-80GB", DType::kF32), 19.5e12);
  EXPECT_EQ(PeakOperations("NVIDIA GB200", DType::kBf16), 2500e12);
  EXPECT_EQ(PeakOperations("an emulated GPU", DType::kBf16), 0);
}

TEST(OperationsPerToken, AreThoseOfGpt2) {
  const GptConfig gpt2 = {
      .layers = 12, .heads = 12, .hidden_size = 768, .context = 1024, .vocabulary = 50257};
  EXPECT_NEAR(OperationsPerToken(gpt2), 6 * 124.4e6 + 6 * 12 * 768 * 1024.0, 1e6);
}

}  // namespace
}  // namespace muster::train

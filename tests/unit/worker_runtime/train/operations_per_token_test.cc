#include "worker_runtime/train/operations_per_token.h"

#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(OperationsPerToken, AreThoseOfGpt2) {
  const DecoderConfig gpt2 = {
      .layers = 12, .heads = 12, .hidden_size = 768, .context = 1024, .vocabulary = 50257};
  EXPECT_NEAR(OperationsPerToken(gpt2), 6 * 124.4e6 + 6 * 12 * 768 * 1024.0, 1e6);
}

}  // namespace
}  // namespace muster::train

#include "worker_runtime/plan/gpt_activations.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/gpt.h"
#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;

struct Case {
  GptConfig config;
  MicroBatch micro_batch;
};

int64_t MeasuredPeak(const Case& c) {
  ParameterStore store(c.micro_batch.dtype);
  const absl::StatusOr<std::unique_ptr<Gpt>> gpt = Gpt::Create(c.config, store);
  EXPECT_THAT(gpt, IsOk());
  store.BindToOwnBuffers();
  store.Initialize(1);
  const std::vector<int32_t> tokens(c.micro_batch.batch * c.micro_batch.sequence, 1);
  TensorPool pool;
  Tape tape(pool);
  const Loss loss =
      (*gpt)->ComputeLoss(tape, {tokens, c.micro_batch.batch, c.micro_batch.sequence}, tokens);
  tape.Backward(loss.output);
  return static_cast<int64_t>(pool.usage().bytes_in_use_peak);
}

// One row for each of the three moments that may be the peak, and one each for other types, few
// tokens, many heads and short sequences.
const Case kCases[] = {
    {{.layers = 2, .heads = 2, .hidden_size = 64, .context = 32, .vocabulary = 2000}, {2, 32}},
    {{.layers = 3, .heads = 4, .hidden_size = 64, .context = 64, .vocabulary = 17}, {3, 64}},
    {{.layers = 1, .heads = 2, .hidden_size = 8, .context = 256, .vocabulary = 5}, {1, 256}},
    {{.layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 256},
     {2, 16, DType::kF64}},
    {{.layers = 1, .heads = 1, .hidden_size = 4, .context = 4, .vocabulary = 3}, {1, 1}},
    {{.layers = 2, .heads = 24, .hidden_size = 24, .context = 32, .vocabulary = 40}, {4, 32}},
    {{.layers = 2, .heads = 4, .hidden_size = 96, .context = 128, .vocabulary = 256}, {2, 50}},
    {{.layers = 6, .heads = 6, .hidden_size = 96, .context = 64, .vocabulary = 256}, {1, 64}},
};

TEST(GptActivationBytes, AreWithinFivePercentOfWhatThePoolGaveOut) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(absl::StrCat("layers ", c.config.layers, " width ", c.config.hidden_size,
                              " vocabulary ", c.config.vocabulary, " batch ", c.micro_batch.batch));
    const auto measured = static_cast<double>(MeasuredPeak(c));
    EXPECT_NEAR(static_cast<double>(GptActivationBytes(c.config, c.micro_batch)), measured,
                0.05 * measured);
  }
}

TEST(EstimateGptActivationBytes, IsNeverBelowTheExactNumberByMuch) {
  for (const Case& c : kCases) {
    if (c.config.hidden_size < 32) continue;  // the tape's own records weigh too much
    const auto exact = static_cast<double>(GptActivationBytes(c.config, c.micro_batch));
    const double estimate = EstimateGptActivationBytes(c.config, c.micro_batch);
    EXPECT_GT(estimate, 0.9 * exact);
    EXPECT_LT(estimate, 3 * exact);
  }
}

TEST(EstimateGptActivationBytes, DoesNotOverflow) {
  const GptConfig config = {.layers = 1 << 16,
                            .heads = 1,
                            .hidden_size = 1 << 20,
                            .context = 1 << 24,
                            .vocabulary = 1 << 24};
  EXPECT_GT(EstimateGptActivationBytes(config, {.batch = 1 << 20, .sequence = 1 << 24}), 1e24);
}

}  // namespace
}  // namespace muster::plan

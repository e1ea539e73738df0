#include "worker_runtime/engine/meta_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/decoder.h"
#include "tests/support/status_matchers.h"

namespace muster::engine {
namespace {

using ::muster::testing::IsOk;
using ::testing::Each;
using ::testing::SizeIs;

struct Case {
  DecoderConfig config;
  int64_t batch = 1;
  int64_t sequence = 1;
  DType dtype = DType::kF32;
};

const Case kCases[] = {
    {{.layers = 2, .heads = 2, .hidden_size = 64, .context = 32, .vocabulary = 2000}, 2, 32},
    {{.layers = 3, .heads = 4, .hidden_size = 64, .context = 64, .vocabulary = 17}, 3, 64},
    {{.layers = 1, .heads = 2, .hidden_size = 8, .context = 256, .vocabulary = 5}, 1, 256},
    {{.layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 256},
     2,
     16,
     DType::kF64},
    {{.layers = 1, .heads = 1, .hidden_size = 4, .context = 4, .vocabulary = 3}, 1, 1},
};

struct Use {
  plan::UseTrace trace;
  TensorPool::Usage usage;
};

// The same with memory.
Use Measured(const Case& c) {
  ParameterStore store(c.dtype);
  const auto gpt = Decoder::Create(c.config, store);
  EXPECT_THAT(gpt, IsOk());
  store.BindToOwnBuffers();
  store.Initialize(1);
  const std::vector<int32_t> tokens(c.batch * c.sequence, 1);
  TensorPool pool;
  Tape tape(pool);
  Use use;
  tape.OnGradientReady([&](Parameter& p) { use.trace.gradients.push_back(p.index()); });
  const Loss loss = (*gpt)->ComputeLoss(tape, {tokens, c.batch, c.sequence}, tokens);
  use.trace.kept_bytes = static_cast<int64_t>(pool.usage().bytes_in_use);
  tape.Backward(loss.output);
  use.usage = pool.usage();
  return use;
}

plan::UseTrace Planned(const Case& c, bool on_gpus = false) {
  ParameterStore store(c.dtype);
  const auto gpt = Decoder::Create(c.config, store);
  EXPECT_THAT(gpt, IsOk());
  const auto tokens = SizesOf(c.batch * c.sequence);
  const auto trace = RecordUse(
      store, Plan(),
      [&](Tape& tape) -> absl::StatusOr<Loss> {
        return (*gpt)->ComputeLoss(tape, {tokens, c.batch, c.sequence}, tokens);
      },
      MetaDevice(on_gpus));
  EXPECT_THAT(trace, IsOk());
  for (const auto& parameter : store.parameters()) EXPECT_TRUE(parameter->value().empty());
  return *trace;
}

TEST(RecordUse, IsWhatTheModelTakesWithMemory) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(absl::StrCat(c.config.layers, " layers, hidden size ", c.config.hidden_size));
    const Use measured = Measured(c);
    const plan::UseTrace planned = Planned(c);
    EXPECT_EQ(planned.gradients, measured.trace.gradients);
    EXPECT_EQ(planned.kept_bytes, measured.trace.kept_bytes);
    EXPECT_EQ(planned.peak_bytes, static_cast<int64_t>(measured.usage.bytes_reserved));
  }
}

TEST(RecordUse, TakesNoMemoryForAModelThatWouldNotFit) {
  const Case large = {
      {.layers = 96, .heads = 96, .hidden_size = 12288, .context = 2048, .vocabulary = 50257},
      8,
      2048};
  const plan::UseTrace trace = Planned(large);
  EXPECT_THAT(trace.gradients, SizeIs(2 + 96 * 12 + 2));
  EXPECT_GT(trace.peak_bytes, int64_t{1} << 40);
}

TEST(RecordUse, HasAllLogitsOnTheHostAndAFewAtATimeOnAGpu) {
  constexpr int64_t kVocabulary = 50257;
  const Case wide = {{.layers = 1, .heads = 1, .hidden_size = 64, .vocabulary = kVocabulary},
                     64,
                     256,
                     DType::kBf16};
  constexpr int64_t kLogits = 64 * 256 * kVocabulary;
  EXPECT_GT(Planned(wide).peak_bytes, 2 * kLogits);
  EXPECT_LT(Planned(wide, true).peak_bytes, kLogits);
  EXPECT_GT(Planned(wide, true).peak_bytes, int64_t{2} << 28);
}

TEST(MetaDeathTest, SaysThatNoValueCanBeRead) {
  TensorPool pool(Device::Meta());
  const Tensor x = pool.Allocate(DType::kF32, {3});
  EXPECT_FALSE(x.has_elements());
  EXPECT_DEATH(x.data<float>(), "host_reads");
}

TEST(Meta, CountsTheKernels) {
  TensorPool pool(Device::Meta());
  Tape tape(pool);
  const Activation x = tape.Watch(pool.Allocate(DType::kF32, {2, 3}));
  const Activation y = Nonlinear(Nonlinearity::kGelu).Forward(tape, Add(tape, x, x));
  EXPECT_EQ(tape.queue().num_kernels(), 2);
  tape.Backward(y, pool.Allocate(DType::kF32, {2, 3}));
  EXPECT_EQ(tape.queue().num_kernels(), 4) << "GELU's gradient, and the sum of the two of x";
}

}  // namespace
}  // namespace muster::engine

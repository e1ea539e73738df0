#include <gtest/gtest.h>

#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/attention.h"

namespace muster::kernels {
namespace {

using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

template <typename T>
struct AttentionResult {
  std::vector<T> out, dqkv;
};

int64_t NumRows(AttentionShape s) { return s.batch * s.sequence * s.heads; }

template <typename T>
AttentionResult<T> RunAttention(const AttentionKernels<T>& kernels, AttentionShape shape) {
  const int64_t n = NumRows(shape) * shape.head_width;
  const auto qkv = RandomNumbers<T>(3 * n, "qkv");
  const auto dout = RandomNumbers<T>(n, "dout");
  std::vector<T> max(NumRows(shape)), scale(NumRows(shape));
  // What scratch held before must not matter.
  std::vector<T> scratch(AttentionScratchElements(shape), T(NAN));
  AttentionResult<T> run{std::vector<T>(n), std::vector<T>(3 * n, T(NAN))};
  const typename AttentionKernels<T>::Saved saved = {max.data(), scale.data()};
  kernels.forward(shape, qkv.data(), run.out.data(), saved, scratch.data());
  kernels.backward(shape, qkv.data(), saved, {run.out.data(), dout.data()}, run.dqkv.data(),
                   scratch.data());
  return run;
}

// One query at a time, as the formula says.
std::vector<double> Expected(AttentionShape s, const std::vector<double>& qkv) {
  const int64_t width = s.heads * s.head_width;
  std::vector<double> out(s.batch * s.sequence * width);
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h) {
    return &qkv[((b * s.sequence + t) * 3 + part) * width + h * s.head_width];
  };
  for (int64_t row = 0; row < NumRows(s); ++row) {
    const int64_t b = row / s.heads / s.sequence, t = row / s.heads % s.sequence, h = row % s.heads;
    std::vector<double> weights(t + 1);
    double total = 0;
    for (int64_t key = 0; key <= t; ++key) {
      double score = 0;
      for (int64_t i = 0; i < s.head_width; ++i) score += at(b, t, 0, h)[i] * at(b, key, 1, h)[i];
      total += weights[key] = std::exp(score / std::sqrt(double(s.head_width)));
    }
    double* to = &out[(b * s.sequence + t) * width + h * s.head_width];
    for (int64_t key = 0; key <= t; ++key) {
      for (int64_t i = 0; i < s.head_width; ++i) {
        to[i] += weights[key] / total * at(b, key, 2, h)[i];
      }
    }
  }
  return out;
}

std::vector<AttentionShape> Shapes() {
  return {{.batch = 1, .sequence = 1, .heads = 1, .head_width = 1},
          {.batch = 2, .sequence = 3, .heads = 2, .head_width = 5},
          {.batch = 1, .sequence = 64, .heads = 1, .head_width = 16},
          {.batch = 2, .sequence = 65, .heads = 3, .head_width = 17},
          {.batch = 1, .sequence = 257, .heads = 2, .head_width = 8}};
}

std::string Describe(AttentionShape s) {
  return absl::StrCat(s.batch, " x ", s.sequence, " x ", s.heads, " x ", s.head_width);
}

TEST(Attention, EqualsItsDefinition) {
  for (const AttentionShape shape : Shapes()) {
    const auto qkv = RandomNumbers<double>(3 * NumRows(shape) * shape.head_width, "qkv");
    const auto run = RunAttention(Attention<double>(), shape);
    EXPECT_LT(RelativeError(run.out, Expected(shape, qkv)), 1e-13) << Describe(shape);
  }
}

TEST(Attention, BackwardEqualsFiniteDifferences) {
  const AttentionShape shape = {.batch = 1, .sequence = 70, .heads = 2, .head_width = 3};
  const int64_t n = NumRows(shape) * shape.head_width;
  auto qkv = RandomNumbers<double>(3 * n, "qkv");
  const auto dout = RandomNumbers<double>(n, "dout");
  const auto run = RunAttention(Attention<double>(), shape);
  const auto weighted = [&] {
    const auto out = Expected(shape, qkv);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += out[i] * dout[i];
    return sum;
  };
  for (int64_t i = 0; i < 3 * n; i += 23) {
    const double before = qkv[i];
    qkv[i] = before + 1e-5;
    const double above = weighted();
    qkv[i] = before - 1e-5;
    const double slope = (above - weighted()) / 2e-5;
    qkv[i] = before;
    EXPECT_NEAR(run.dqkv[i], slope, 1e-7) << i;
  }
}

TEST(Attention, FloatEqualsDouble) {
  for (const AttentionShape shape : Shapes()) {
    const auto narrow = RunAttention(Attention<float>(), shape);
    const auto wide = RunAttention(Attention<double>(), shape);
    EXPECT_LT(RelativeError(narrow.out, wide.out), 3e-6) << Describe(shape);
    EXPECT_LT(RelativeError(narrow.dqkv, wide.dqkv), 5e-6) << Describe(shape);
  }
}

TEST(Attention, HasTheSameBitsRunAfterRunAndUnderEveryInstructionSet) {
  const AttentionShape shape = Shapes()[3];
  const auto expected = RunAttention(MakeAttention<Isa::kBaseline, float>(), shape);
  for (const Isa isa : SupportedIsas()) {
    const auto actual =
        RunAttention(ForIsa(isa, [](auto set) { return MakeAttention<set(), float>(); }), shape);
    EXPECT_TRUE(SameBits(actual.out, expected.out)) << ToString(isa);
    EXPECT_TRUE(SameBits(actual.dqkv, expected.dqkv)) << ToString(isa);
  }
}

TEST(Attention, ASequenceHasTheSameBitsAloneAndInABatch) {
  const AttentionShape two = {.batch = 2, .sequence = 65, .heads = 3, .head_width = 16};
  AttentionShape one = two;
  one.batch = 1;
  const auto together = RunAttention(Attention<float>(), two);
  const auto alone = RunAttention(Attention<float>(), one);
  EXPECT_TRUE(SameBits(absl::MakeConstSpan(together.out).first(alone.out.size()), alone.out));
  EXPECT_TRUE(SameBits(absl::MakeConstSpan(together.dqkv).first(alone.dqkv.size()), alone.dqkv));
}

TEST(Attention, DoesNotLookAhead) {
  const AttentionShape shape = {.batch = 1, .sequence = 80, .heads = 1, .head_width = 4};
  auto qkv = RandomNumbers<float>(3 * 80 * 4, "qkv");
  std::vector<float> before(80 * 4), after(80 * 4), max(80), scale(80);
  std::vector<float> scratch(AttentionScratchElements(shape));
  Attention<float>().forward(shape, qkv.data(), before.data(), {max.data(), scale.data()},
                             scratch.data());
  for (int i = 50 * 12; i < 80 * 12; ++i) qkv[i] = 100;
  Attention<float>().forward(shape, qkv.data(), after.data(), {max.data(), scale.data()},
                             scratch.data());
  EXPECT_TRUE(SameBits(absl::MakeConstSpan(before).first(50 * 4),
                       absl::MakeConstSpan(after).first(50 * 4)));
}

}  // namespace
}  // namespace muster::kernels

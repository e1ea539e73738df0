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

int64_t NumInputs(AttentionShape s) { return s.batch * s.sequence * s.line_width(); }
int64_t NumOutputs(AttentionShape s) { return s.batch * s.sequence * s.out_width(); }

template <typename T>
AttentionResult<T> RunAttention(const AttentionKernels<T>& kernels, AttentionShape shape) {
  const auto qkv = RandomNumbers<T>(NumInputs(shape), "qkv");
  const auto dout = RandomNumbers<T>(NumOutputs(shape), "dout");
  std::vector<T> max(shape.query_rows()), scale(shape.query_rows());
  // What scratch held before must not matter.
  std::vector<T> scratch(AttentionScratchElements(shape), T(NAN));
  AttentionResult<T> run{std::vector<T>(dout.size()), std::vector<T>(qkv.size(), T(NAN))};
  const typename AttentionKernels<T>::Saved saved = {max.data(), scale.data()};
  kernels.forward(shape, qkv.data(), run.out.data(), saved, scratch.data());
  kernels.backward(shape, qkv.data(), saved, {run.out.data(), dout.data()}, run.dqkv.data(),
                   scratch.data());
  return run;
}

// One query at a time, as the formula says.
std::vector<double> Expected(AttentionShape s, const std::vector<double>& qkv) {
  std::vector<double> out(NumOutputs(s));
  const int64_t num_keys = s.kv_heads == 0 ? s.heads : s.kv_heads;
  const double scale = s.score_scale == 0 ? 1 / std::sqrt(double(s.head_width)) : s.score_scale;
  // The head `h` of a line: those of Q, of K and of V follow each other.
  const auto at = [&](int64_t b, int64_t t, int64_t h) {
    return &qkv[((b * s.sequence + t) * (s.heads + 2 * num_keys) + h) * s.head_width];
  };
  for (int64_t row = 0; row < s.batch * s.sequence * s.heads; ++row) {
    const int64_t b = row / s.heads / s.sequence, t = row / s.heads % s.sequence, h = row % s.heads;
    const int64_t key_head = s.heads + h / (s.heads / num_keys), value_head = key_head + num_keys;
    std::vector<double> weights(t + 1);
    double total = 0;
    for (int64_t key = 0; key <= t; ++key) {
      double score = 0;
      for (int64_t i = 0; i < s.head_width; ++i) score += at(b, t, h)[i] * at(b, key, key_head)[i];
      total += weights[key] = std::exp(score * scale);
    }
    double* to = &out[row * s.head_width];
    for (int64_t key = 0; key <= t; ++key) {
      for (int64_t i = 0; i < s.head_width; ++i) {
        to[i] += weights[key] / total * at(b, key, value_head)[i];
      }
    }
  }
  return out;
}

// Shapes with as many heads of K and V as of Q, and groups that share them; heads of models and odd
// ones; sequences that end within a block, with it and behind it.
std::vector<AttentionShape> Shapes() {
  return {{.batch = 1, .sequence = 1, .heads = 1, .head_width = 1},
          {.batch = 2, .sequence = 3, .heads = 2, .head_width = 5},
          {.batch = 1, .sequence = 64, .heads = 1, .head_width = 16},
          {.batch = 2, .sequence = 65, .heads = 3, .head_width = 17},
          {.batch = 1, .sequence = 257, .heads = 2, .head_width = 8},
          {.batch = 2, .sequence = 65, .heads = 4, .kv_heads = 4, .head_width = 64},
          {.batch = 2, .sequence = 65, .heads = 4, .kv_heads = 2, .head_width = 80},
          {.batch = 1, .sequence = 130, .heads = 6, .kv_heads = 1, .head_width = 96},
          {.batch = 1, .sequence = 70, .heads = 8, .kv_heads = 2, .head_width = 128},
          {.batch = 2, .sequence = 131, .heads = 6, .kv_heads = 3, .head_width = 7},
          {.batch = 1, .sequence = 3, .heads = 8, .kv_heads = 2, .head_width = 1},
          {.batch = 2,
           .sequence = 66,
           .heads = 6,
           .kv_heads = 1,
           .head_width = 9,
           .score_scale = 0.0625}};
}

std::string Describe(AttentionShape s) {
  return absl::StrCat(s.batch, " x ", s.sequence, ", heads of ", s.head_width, ": ", s.heads,
                      " of Q and ", s.key_heads(), " of K");
}

TEST(Attention, EqualsItsDefinition) {
  for (const AttentionShape shape : Shapes()) {
    const auto qkv = RandomNumbers<double>(NumInputs(shape), "qkv");
    const auto run = RunAttention(Attention<double>(), shape);
    EXPECT_LT(RelativeError(run.out, Expected(shape, qkv)), 1e-13) << Describe(shape);
  }
}

void ExpectFiniteDifferences(AttentionShape shape) {
  auto qkv = RandomNumbers<double>(NumInputs(shape), "qkv");
  const auto dout = RandomNumbers<double>(NumOutputs(shape), "dout");
  const auto run = RunAttention(Attention<double>(), shape);
  const auto weighted = [&] {
    const auto out = Expected(shape, qkv);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  for (size_t i = 0; i < qkv.size(); i += 23) {
    const double before = qkv[i];
    qkv[i] = before + 1e-5;
    const double above = weighted();
    qkv[i] = before - 1e-5;
    const double slope = (above - weighted()) / 2e-5;
    qkv[i] = before;
    EXPECT_NEAR(run.dqkv[i], slope, 1e-7) << Describe(shape) << ", number " << i;
  }
}

// The first sequence is longer than a block of queries; heads that share keys add to them there.
TEST(Attention, BackwardEqualsFiniteDifferences) {
  ExpectFiniteDifferences({.batch = 1, .sequence = 70, .heads = 2, .head_width = 3});
  ExpectFiniteDifferences({.batch = 1, .sequence = 70, .heads = 4, .kv_heads = 2, .head_width = 3});
  ExpectFiniteDifferences({.batch = 2, .sequence = 9, .heads = 4, .kv_heads = 4, .head_width = 5});
  ExpectFiniteDifferences({.batch = 2, .sequence = 9, .heads = 6, .kv_heads = 1, .head_width = 5});
  ExpectFiniteDifferences({.batch = 1, .sequence = 9, .heads = 8, .kv_heads = 2, .head_width = 8});
  ExpectFiniteDifferences(
      {.batch = 1, .sequence = 9, .heads = 4, .kv_heads = 2, .head_width = 4, .score_scale = 0.3});
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
  for (const AttentionShape shape : {Shapes()[3], Shapes()[9]}) {
    const auto expected = RunAttention(MakeAttention<Isa::kBaseline, float>(), shape);
    for (const Isa isa : SupportedIsas()) {
      const auto actual =
          RunAttention(ForIsa(isa, [](auto set) { return MakeAttention<set(), float>(); }), shape);
      EXPECT_TRUE(SameBits(actual.out, expected.out)) << ToString(isa);
      EXPECT_TRUE(SameBits(actual.dqkv, expected.dqkv)) << ToString(isa);
    }
  }
}

// GPT's bits: to say how many heads of K there are changes nothing, nor to say what the scale is.
TEST(Attention, HasTheSameBitsWhateverIsLeftOutOfItsShape) {
  const AttentionShape brief = {.batch = 2, .sequence = 65, .heads = 3, .head_width = 16};
  AttentionShape whole = brief;
  whole.kv_heads = 3;
  whole.score_scale = 0.25;
  const auto expected = RunAttention(Attention<float>(), brief);
  const auto actual = RunAttention(Attention<float>(), whole);
  EXPECT_TRUE(SameBits(actual.out, expected.out));
  EXPECT_TRUE(SameBits(actual.dqkv, expected.dqkv));
}

TEST(Attention, OfATextThatGrowsIsThatOfTheWholeText) {
  for (const AttentionShape all : Shapes()) {
    const auto whole = RunAttention(Attention<double>(), all);
    const auto qkv = RandomNumbers<double>(NumInputs(all), "qkv");
    std::vector<double> out(whole.out.size(), 7), max(all.query_rows()), scale(all.query_rows());
    std::vector<double> scratch(AttentionScratchElements(all), NAN);
    for (const int64_t first : {int64_t{0}, all.sequence / 2, all.sequence - 1}) {
      AttentionShape shape = all;
      shape.first_query = first;
      shape.of_cache = true;
      std::fill(out.begin(), out.end(), 7);
      Attention<double>().forward(shape, qkv.data(), out.data(), {max.data(), scale.data()},
                                  scratch.data());
      std::vector<double> expected = whole.out;
      for (int64_t b = 0; b < all.batch; ++b) {
        const auto begin = expected.begin() + b * all.sequence * all.out_width();
        std::fill(begin, begin + first * all.out_width(), 7);
      }
      EXPECT_LT(RelativeError(out, expected), 1e-13) << Describe(all) << " from " << first;
    }
  }
}

TEST(Attention, ASequenceHasTheSameBitsAloneAndInABatch) {
  const AttentionShape two = {
      .batch = 2, .sequence = 65, .heads = 6, .kv_heads = 3, .head_width = 16};
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

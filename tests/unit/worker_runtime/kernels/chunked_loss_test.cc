// The loss in chunks beside the host's of all rows at once. Products are the host's.
#include "worker_runtime/kernels/chunked_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/kernels/matmul.h"

namespace muster::kernels {
namespace {

using ::muster::testing::CopyFromKernels;
using ::muster::testing::CopyToKernels;
using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::KernelTypes;
using ::muster::testing::Narrowed;
using ::muster::testing::RandomTokens;
using ::muster::testing::RelativeError;
using ::muster::testing::Widened;

std::vector<float> Multiplied(const cuda::DenseProduct<float>& p) {
  std::vector<float> c(p.c, p.c + p.m * p.n);
  Matmul({.m = p.m, .n = p.n, .k = p.k}, 1.0f,
         {.data = p.a,
          .stride = p.transpose_a ? p.m : p.k,
          .transpose = p.transpose_a ? Transpose::kYes : Transpose::kNo},
         {.data = p.b,
          .stride = p.transpose_b ? p.k : p.n,
          .transpose = p.transpose_b ? Transpose::kYes : Transpose::kNo},
         MatmulResult<float>{.data = c.data(), .stride = p.n, .beta = p.accumulate ? 1.0f : 0.0f});
  return c;
}

template <typename T>
std::vector<float> FromKernels(const T* from, int64_t n) {
  std::vector<T> numbers(n);
  CopyFromKernels(from, numbers.data(), n * sizeof(T));
  return Widened(numbers);
}

// A product by the host of what lies in the kernels' memory, rounded once.
template <typename T>
LaunchError MultiplyOnHost(const cuda::DenseProduct<T>& p) {
  const auto a = FromKernels(p.a, p.m * p.k);
  const auto b = FromKernels(p.b, p.k * p.n);
  // Where it is overwritten, the result holds what was poison.
  auto c = p.accumulate ? FromKernels(p.c, p.m * p.n) : std::vector<float>(p.m * p.n);
  c = Multiplied(
      {p.m, p.n, p.k, a.data(), b.data(), c.data(), p.transpose_a, p.transpose_b, p.accumulate});
  if constexpr (std::is_same_v<T, float>) {
    CopyToKernels(c.data(), p.c, c.size() * sizeof(T));
  } else {
    const auto narrow = Narrowed<T>(c);
    CopyToKernels(narrow.data(), p.c, c.size() * sizeof(T));
  }
  return nullptr;
}

template <typename T>
class ChunkedLoss : public KernelTest<T> {
 protected:
  static constexpr int64_t kRows = 37, kWidth = 24, kVocabulary = 51;
  // Logits of bf16 are rounded before the softmax, and dweight once per chunk.
  static constexpr double kTolerance = std::is_same_v<T, float> ? 1e-5 : 3e-2;

  void SetUp() override {
    KernelTest<T>::SetUp();
    x = KernelNumbers<T>(kRows * kWidth, "x");
    weight = KernelNumbers<T>(kVocabulary * kWidth, "weight", 0.5);
    before = KernelNumbers<T>(kVocabulary * kWidth, "before", 0.1);
    targets = RandomTokens(kRows, kVocabulary, "targets");
    targets[5] = kIgnoredTarget;
  }

  std::vector<T> x, weight, before;
  std::vector<int32_t> targets;
};
TYPED_TEST_SUITE(ChunkedLoss, KernelTypes, KernelTypeNames);

TYPED_TEST(ChunkedLoss, GivesTheLossesAndGradientsOfAllRowsAtOnce) {
  constexpr int64_t kRows = TestFixture::kRows, kWidth = TestFixture::kWidth;
  constexpr int64_t kVocabulary = TestFixture::kVocabulary;
  const auto wide_x = Widened(this->x);
  const auto wide_weight = Widened(this->weight);
  std::vector<float> room(kRows * kVocabulary), dx(kRows * kWidth);
  auto dlogits = Multiplied(
      {kRows, kVocabulary, kWidth, wide_x.data(), wide_weight.data(), room.data(), false, true});
  const auto sum = CrossEntropy<float>().run({kRows, kVocabulary}, dlogits.data(),
                                             this->targets.data(), dlogits.data());
  for (float& d : dlogits) d *= 0.5f;
  dx = Multiplied({kRows, kWidth, kVocabulary, dlogits.data(), wide_weight.data(), dx.data()});
  auto dweight = Widened(this->before);
  dweight = Multiplied({kVocabulary, kWidth, kRows, dlogits.data(), wide_x.data(), dweight.data(),
                        true, false, true});

  const KernelArray<TypeParam> on_x(this->x);
  const KernelArray<int32_t> on_targets(this->targets);
  const KernelArray<float> scale(std::vector{0.5f});
  struct Case {
    int64_t chunk;
    int64_t padded;
  };
  for (const auto [chunk, padded] :
       {Case{1, 51}, Case{16, 51}, Case{37, 51}, Case{100, 51}, Case{16, 56}, Case{100, 128}}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk, ", padded to ", padded));
    const auto filled_up = [&, padded = padded](std::vector<TypeParam> table) {
      table.resize(padded * kWidth);
      return table;
    };
    const KernelArray<TypeParam> on_weight(filled_up(this->weight));
    const auto losses = KernelArray<double>::Poisoned(kRows);
    const auto on_dx = KernelArray<TypeParam>::Poisoned(kRows * kWidth);
    const KernelArray<TypeParam> on_dweight(filled_up(this->before));
    // Logits of one chunk, and not of more.
    const auto logits = KernelArray<TypeParam>::Poisoned(std::min(chunk, kRows) * padded);
    ASSERT_EQ(cuda::ChunkedLoss<TypeParam>(
                  nullptr, {kRows, kWidth, kVocabulary, chunk, padded},
                  {on_x.data(), on_weight.data(), on_targets.data(), scale.data()},
                  {losses.data(), on_dx.data(), on_dweight.data(), logits.data()},
                  &MultiplyOnHost<TypeParam>),
              nullptr);
    double loss = 0;
    for (const double row : losses.Read()) loss += row;
    EXPECT_NEAR(loss, sum.loss, this->kTolerance * sum.loss);
    EXPECT_LE(RelativeError(Widened(on_dx.Read()), dx), this->kTolerance);
    auto got = Widened(on_dweight.Read());
    const std::vector behind(got.begin() + kVocabulary * kWidth, got.end());
    EXPECT_EQ(behind, std::vector<float>(behind.size()));
    got.resize(kVocabulary * kWidth);
    EXPECT_LE(RelativeError(got, dweight), this->kTolerance);
  }
}

TYPED_TEST(ChunkedLoss, WithoutAScaleThereAreLossesAlone) {
  constexpr int64_t kRows = TestFixture::kRows;
  const KernelArray<TypeParam> x(this->x), weight(this->weight);
  const KernelArray<int32_t> targets(this->targets);
  const auto losses = KernelArray<double>::Poisoned(kRows);
  const auto logits = KernelArray<TypeParam>::Poisoned(10 * TestFixture::kVocabulary);
  ASSERT_EQ(cuda::ChunkedLoss<TypeParam>(
                nullptr, {kRows, TestFixture::kWidth, TestFixture::kVocabulary, 10},
                {x.data(), weight.data(), targets.data(), nullptr},
                {losses.data(), nullptr, nullptr, logits.data()}, &MultiplyOnHost<TypeParam>),
            nullptr);
  for (const double loss : losses.Read()) EXPECT_GE(loss, 0);
}

TEST(LogitChunks, AreWholeTilesWhereThereAreAsMany) {
  EXPECT_EQ(RowsAtOnce(32768, 50304, kLogitsAtOnce), 5120);
  EXPECT_EQ(RowsAtOnce(1000, 50304, kLogitsAtOnce), 1000);
  EXPECT_EQ(RowsAtOnce(32768, 50304, 50304 * 100), 100);
  EXPECT_EQ(RowsAtOnce(32768, 50304, 1), 1);
}

TEST(LogitChunks, RowsOfLogitsBeginWhereTensorCoresReadAtOnce) {
  EXPECT_EQ(PaddedVocabulary(50257), 50304);
  EXPECT_EQ(PaddedVocabulary(50304), 50304);
  EXPECT_EQ(PaddedVocabulary(1000), 1000);
  EXPECT_EQ(PaddedVocabulary(51), 128);
}

TEST(ChunkedLossFailure, EndsWithTheFirstProductThatFails) {
  int calls = 0;
  std::vector<float> x(9), weight(1), dx(9), logits(2);
  std::vector<int32_t> targets(9);
  std::vector<double> losses(9);
  const LaunchError error =
      cuda::ChunkedLoss<float>(nullptr, {.rows = 9, .width = 1, .vocabulary = 1, .chunk_rows = 2},
                               {.x = x.data(), .weight = weight.data(), .targets = targets.data()},
                               {.losses = losses.data(), .dx = dx.data(), .logits = logits.data()},
                               [&](const cuda::DenseProduct<float>&) -> LaunchError {
                                 ++calls;
                                 return "no product";
                               });
  EXPECT_STREQ(error, "no product");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace muster::kernels

// What the kernels of a training move of a GPU's memory, at least: bytes for each number, as
// tests/gpu/estimate.py takes them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/kernel_memory.h"
#include "tests/unit/worker_runtime/cuda/ptx/ptx_runtime.h"
#include "worker_runtime/kernels/cuda_kernels.h"

namespace muster::kernels {
namespace {

using ::muster::testing::KernelArray;
using ::muster::testing::PtxTraffic;
using ::muster::testing::TakeKernelTraffic;

constexpr RowShape kShape = {.rows = 64, .width = 768};  // GPT-2 124M's
constexpr int64_t kNumbers = kShape.rows * kShape.width;

template <typename T>
KernelArray<T> Ones(int64_t count) {
  return KernelArray<T>(std::vector<T>(static_cast<size_t>(count), T{1}));
}

// Bytes of `launch` for each of `numbers`, to a tenth.
double BytesPerNumber(int64_t numbers, const std::function<LaunchError()>& launch) {
  TakeKernelTraffic();
  EXPECT_EQ(launch(), nullptr);
  int64_t bytes = 0;
  for (const auto& [name, traffic] : TakeKernelTraffic()) {
    bytes += traffic.sector_bytes_read + traffic.sector_bytes_written;
  }
  return std::round(10 * static_cast<double>(bytes) / static_cast<double>(numbers)) / 10;
}

class KernelTraffic : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = testing::WhyKernelsCannotRun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
  // Beside their numbers rows have some of their own, and weights are read once.
  static constexpr double kOfRows = 0.3;
};

TEST_F(KernelTraffic, OfNorms) {
  const auto x = Ones<uint16_t>(kNumbers), y = Ones<uint16_t>(kNumbers),
             z = Ones<uint16_t>(kNumbers);
  const auto gamma = Ones<uint16_t>(kShape.width), beta = Ones<uint16_t>(kShape.width);
  const auto mean = Ones<float>(kNumbers), rstd = Ones<float>(kNumbers);
  const auto dgamma = Ones<float>(kShape.width), dbeta = Ones<float>(kShape.width);
  const cuda::NormSaved saved = {mean.data(), rstd.data()};
  using enum NormKind;
  // The last has the heads of whole lines, each with a number of its own.
  for (const NormShape& shape :
       {NormShape{kLayer, kShape.rows, kShape.width}, NormShape{kRms, kShape.rows, kShape.width},
        NormShape{kRms, 6 * kShape.rows, 128, 6, kShape.width}}) {
    const auto scratch = Ones<float>(cuda::NormScratch(shape));
    EXPECT_NEAR(BytesPerNumber(kNumbers,
                               [&] {
                                 return cuda::NormForward<uint16_t>(
                                     nullptr, shape, x.data(), {gamma.data(), beta.data(), 1e-5},
                                     y.data(), saved);
                               }),
                4, kOfRows);
    EXPECT_NEAR(BytesPerNumber(kNumbers,
                               [&] {
                                 return cuda::NormBackward<uint16_t, float>(
                                     nullptr, shape, {x.data(), y.data(), z.data()}, gamma.data(),
                                     saved, z.data(), {dgamma.data(), dbeta.data(), false},
                                     scratch.data());
                               }),
                8, 5 * kOfRows);
    EXPECT_NEAR(BytesPerNumber(kNumbers,
                               [&] {
                                 return cuda::NormBackward<uint16_t, float>(
                                     nullptr, shape, {x.data(), y.data(), z.data()}, gamma.data(),
                                     saved, z.data(), {}, nullptr);
                               }),
                8, kOfRows);
  }
}

// The row of the second read is in the cache: it is read and written once.
TEST_F(KernelTraffic, OfTheLossIsItsRowsOnceEachWay) {
  constexpr cuda::LogitShape kLogits = {.rows = 2, .width = 50257, .stride = 50304};
  const auto logits = Ones<uint16_t>(kLogits.rows * kLogits.stride);
  const auto targets = Ones<int32_t>(kLogits.rows);
  const auto scale = Ones<float>(1);
  const auto losses = Ones<double>(kLogits.rows);
  EXPECT_NEAR(BytesPerNumber(kLogits.rows * kLogits.stride,
                             [&] {
                               return cuda::CrossEntropyRows<uint16_t>(
                                   nullptr, kLogits, logits.data(), targets.data(), scale.data(),
                                   losses.data());
                             }),
              4, 0.05);
}

// Gradients are those that an engine has: those of tokens that follow each other are added up in
// float, and positions are those of one sequence here, whose sums are read and written too.
TEST_F(KernelTraffic, OfTheEmbedding) {
  constexpr EmbeddingShape kEmbedding = {
      .batch = 1, .sequence = kShape.rows, .width = kShape.width};
  std::vector<int32_t> ids(kShape.rows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const KernelArray<int32_t> tokens(ids);
  const auto table = Ones<uint16_t>(kNumbers), positions = Ones<uint16_t>(kNumbers),
             y = Ones<uint16_t>(kNumbers);
  const auto dtable = Ones<float>(kNumbers), dpositions = Ones<float>(kNumbers);
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::EmbeddingForward<uint16_t>(nullptr, kEmbedding,
                                                                       tokens.data(), table.data(),
                                                                       positions.data(), y.data());
                             }),
              6, kOfRows);
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::EmbeddingForward<uint16_t>(nullptr, kEmbedding,
                                                                       tokens.data(), table.data(),
                                                                       nullptr, y.data());
                             }),
              4, kOfRows);
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::EmbeddingBackward<uint16_t, float>(
                                   nullptr, kEmbedding, tokens.data(), y.data(),
                                   {.dtoken = dtable.data(), .dposition = nullptr});
                             }),
              2 + 8, kOfRows);
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::EmbeddingBackward<uint16_t, float>(
                                   nullptr, kEmbedding, tokens.data(), y.data(),
                                   {.dtoken = nullptr, .dposition = dpositions.data()});
                             }),
              2 + 8, kOfRows);
}

// Lines of ten heads of 64 and two that stay.
TEST_F(KernelTraffic, OfRotary) {
  const auto x = Ones<uint16_t>(kNumbers);
  constexpr RotaryShape kRotary = {
      .batch = 1, .sequence = kShape.rows, .heads = 10, .head_width = 64, .line = kShape.width};
  EXPECT_NEAR(
      BytesPerNumber(kShape.rows * 640,
                     [&] { return cuda::Rotate<uint16_t>(nullptr, kRotary, {}, x.data()); }),
      4, 0.1);
}

TEST_F(KernelTraffic, OfTheUpdate) {
  constexpr int64_t kCount = 8192;
  const auto value = Ones<uint16_t>(kCount);
  const auto gradient = Ones<float>(kCount), master = Ones<float>(kCount),
             first = Ones<float>(kCount), second = Ones<float>(kCount);
  const KernelArray<cuda::UpdateDecision> decision(std::vector{cuda::UpdateDecision{.updates = 1}});
  const cuda::UpdateRun all = {.end = kCount};
  EXPECT_NEAR(BytesPerNumber(kCount,
                             [&] {
                               return cuda::AdamWUpdate(nullptr, {&all, 1}, decision.data(),
                                                        {gradient.data(), master.data(),
                                                         first.data(), second.data(), value.data()},
                                                        {});
                             }),
              30, 0.1);
  const auto partials = Ones<double>(NumNormBlocks(kCount));
  EXPECT_NEAR(BytesPerNumber(kCount,
                             [&] {
                               return cuda::SquaresByBlock<float>(nullptr, gradient.data(), kCount,
                                                                  partials.data());
                             }),
              4, 0.1);
}

// Heads of Q that share keys do not have each a gradient of them in between.
TEST_F(KernelTraffic, OfAttentionIsItsArraysOnceForEachKernel) {
  constexpr AttentionShape kGrouped = {
      .batch = 1, .sequence = 128, .heads = 4, .kv_heads = 2, .head_width = 64};
  constexpr int64_t kLine = 2 * kGrouped.line_width(), kOut = 2 * kGrouped.out_width();  // bytes
  constexpr int64_t kFloats = sizeof(float) * kGrouped.heads;
  const auto qkv = Ones<uint16_t>(kGrouped.sequence * kGrouped.line_width()),
             dqkv = Ones<uint16_t>(kGrouped.sequence * kGrouped.line_width());
  const auto out = Ones<uint16_t>(kGrouped.sequence * kGrouped.out_width()),
             dout = Ones<uint16_t>(kGrouped.sequence * kGrouped.out_width());
  const auto row_max = Ones<float>(kGrouped.query_rows()),
             row_scale = Ones<float>(kGrouped.query_rows()),
             scratch = Ones<float>(kGrouped.query_rows());
  const cuda::AttentionSaved saved = {row_max.data(), row_scale.data()};
  EXPECT_EQ(BytesPerNumber(kGrouped.sequence,
                           [&] {
                             return cuda::AttentionForward<uint16_t>(
                                 nullptr, kGrouped, qkv.data(), out.data(), saved,
                                 testing::KernelSharedBytesMax());
                           }),
            kLine + kOut + 2 * kFloats);
  constexpr int64_t kCorrections = 2 * kOut + kFloats;
  constexpr int64_t kRead = kLine + kOut + 3 * kFloats;  // by either kernel of gradients
  EXPECT_EQ(BytesPerNumber(kGrouped.sequence,
                           [&] {
                             return cuda::AttentionBackward<uint16_t>(
                                 nullptr, kGrouped, qkv.data(), saved, {out.data(), dout.data()},
                                 dqkv.data(), scratch.data(), testing::KernelSharedBytesMax());
                           }),
            kCorrections + 2 * kRead + kLine);
}

TEST_F(KernelTraffic, OfWhatStandsAroundProducts) {
  const auto x = Ones<uint16_t>(kNumbers), y = Ones<uint16_t>(kNumbers),
             dx = Ones<uint16_t>(kNumbers);
  const auto bias = Ones<float>(kShape.width);
  const auto scratch = Ones<float>(cuda::ColumnScratch(kShape));
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::GeluBackward<uint16_t>(nullptr, x.data(), y.data(),
                                                                   dx.data(), kNumbers);
                             }),
              6, 0.1);
  // The halves of a row of 768 are a gate and what it lets through.
  constexpr RowShape kHalves = {.rows = kShape.rows, .width = kShape.width / 2};
  EXPECT_NEAR(
      BytesPerNumber(
          kNumbers / 2,
          [&] { return cuda::SwiGluForward<uint16_t>(nullptr, kHalves, x.data(), y.data()); }),
      6, 0.1);
  EXPECT_NEAR(BytesPerNumber(kNumbers / 2,
                             [&] {
                               return cuda::SwiGluBackward<uint16_t>(nullptr, kHalves, x.data(),
                                                                     y.data(), dx.data());
                             }),
              10, 0.1);
  EXPECT_NEAR(BytesPerNumber(kNumbers,
                             [&] {
                               return cuda::BiasGradient<uint16_t, float>(
                                   nullptr, kShape, x.data(), bias.data(), false, scratch.data());
                             }),
              2, kOfRows);
}

}  // namespace
}  // namespace muster::kernels

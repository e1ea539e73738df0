// Flash attention beside its host twin.
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/kernels/attention_tiles.h"
#include "worker_runtime/kernels/cuda_kernels.h"

namespace muster::kernels {
namespace {

using ::muster::testing::ForEverySchedule;
using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::KernelTypes;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::Widened;

template <typename T>
class AttentionKernel : public KernelTest<T> {
 protected:
  // Probabilities of bf16 and their gradients are rounded before they are multiplied.
  static constexpr double kTolerance = std::is_same_v<T, float> ? 1e-5 : 1.2e-2;
};
TYPED_TEST_SUITE(AttentionKernel, KernelTypes, KernelTypeNames);

// Sequences that end within a tile, with it and behind it; heads that fill their tiles, that fill
// some vectors of them, and that begin between two; heads of Q that share those of K and V.
const std::vector<AttentionShape> kShapes = {
    {.batch = 1, .sequence = 1, .heads = 1, .head_width = 8},
    {.batch = 2, .sequence = 5, .heads = 2, .head_width = 7},
    {.batch = 1, .sequence = 64, .heads = 1, .head_width = 64},
    {.batch = 1, .sequence = 131, .heads = 2, .head_width = 24},
    {.batch = 1, .sequence = 70, .heads = 1, .head_width = 128},
    {.batch = 1, .sequence = 66, .heads = 1, .head_width = 75},
    {.batch = 1, .sequence = 9, .heads = 4, .kv_heads = 4, .head_width = 64},
    {.batch = 1, .sequence = 17, .heads = 4, .kv_heads = 2, .head_width = 80},
    {.batch = 1, .sequence = 17, .heads = 6, .kv_heads = 1, .head_width = 96},
    {.batch = 1, .sequence = 9, .heads = 8, .kv_heads = 2, .head_width = 128},
    {.batch = 1, .sequence = 131, .heads = 2, .kv_heads = 1, .head_width = 5},
    {.batch = 2, .sequence = 9, .heads = 4, .kv_heads = 2, .head_width = 7, .score_scale = 0.125},
};

// Shared memory of a block here, and of GPUs with less where a head has other kernels then.
template <typename T>
std::vector<size_t> SharedMemories(int64_t head_width) {
  std::vector<size_t> all = {testing::KernelSharedBytesMax()};
  if (sizeof(T) == sizeof(float) && head_width > 64 && all[0] > cuda::kSharedBytesOfAll) {
    all.push_back(cuda::kSharedBytesOfAll);
  }
  return all;
}

int64_t NumInputs(AttentionShape s) { return s.batch * s.sequence * s.line_width(); }
int64_t NumOutputs(AttentionShape s) { return s.batch * s.sequence * s.out_width(); }

struct Host {
  Host(AttentionShape shape, const std::vector<float>& qkv)
      : scratch(AttentionScratchElements(shape)),
        out(NumOutputs(shape)),
        row_max(shape.query_rows()),
        row_scale(row_max.size()),
        dqkv(qkv.size()) {
    Attention<float>().forward(shape, qkv.data(), out.data(), saved(), scratch.data());
  }
  AttentionKernels<float>::Saved saved() { return {row_max.data(), row_scale.data()}; }

  std::vector<float> scratch, out, row_max, row_scale, dqkv;
};

// Both passes beside the host's.
template <typename T>
void ExpectTheHosts(AttentionShape shape, size_t shared_bytes_max, double tolerance) {
  const int64_t rows = shape.query_rows();
  const auto qkv = KernelNumbers<T>(NumInputs(shape), "qkv");
  const auto dout = KernelNumbers<T>(NumOutputs(shape), "dout");
  Host host(shape, Widened(qkv));
  const KernelArray<T> on_qkv(qkv), on_dout(dout);
  const auto out = KernelArray<T>::Poisoned(NumOutputs(shape));
  const auto dqkv = KernelArray<T>::Poisoned(NumInputs(shape));
  const auto row_max = KernelArray<float>::Poisoned(rows);
  const auto row_scale = KernelArray<float>::Poisoned(rows);
  const auto scratch = KernelArray<float>::Poisoned(rows);
  const cuda::AttentionSaved saved = {row_max.data(), row_scale.data()};
  ASSERT_EQ(
      cuda::AttentionForward(nullptr, shape, on_qkv.data(), out.data(), saved, shared_bytes_max),
      nullptr);
  EXPECT_LE(RelativeError(row_max.Read(), host.row_max), 1e-5);
  EXPECT_LE(RelativeError(row_scale.Read(), host.row_scale), 1e-5);
  EXPECT_LE(RelativeError(Widened(out.Read()), host.out), tolerance);
  ASSERT_EQ(
      cuda::AttentionBackward<T>(nullptr, shape, on_qkv.data(), saved, {out.data(), on_dout.data()},
                                 dqkv.data(), scratch.data(), shared_bytes_max),
      nullptr);
  host.out = Widened(out.Read());
  Attention<float>().backward(shape, Widened(qkv).data(), host.saved(),
                              {.out = host.out.data(), .dout = Widened(dout).data()},
                              host.dqkv.data(), host.scratch.data());
  EXPECT_LE(RelativeError(Widened(dqkv.Read()), host.dqkv), tolerance);
}

TYPED_TEST(AttentionKernel, GivesTheHostsOutputAndGradients) {
  for (const AttentionShape shape : kShapes) {
    for (const size_t shared : SharedMemories<TypeParam>(shape.head_width)) {
      SCOPED_TRACE(absl::StrCat("sequence ", shape.sequence, ", ", shape.heads, " heads of ",
                                shape.head_width, ", of keys ", shape.key_heads(), ", ", shared,
                                " bytes of shared memory"));
      ExpectTheHosts<TypeParam>(shape, shared, this->kTolerance);
    }
  }
}

TYPED_TEST(AttentionKernel, HasTheSameBitsInEverySchedule) {
  const AttentionShape shape = {
      .batch = 1, .sequence = 67, .heads = 2, .kv_heads = 1, .head_width = 16};
  const KernelArray<TypeParam> qkv(KernelNumbers<TypeParam>(NumInputs(shape), "qkv")),
      dout(KernelNumbers<TypeParam>(NumOutputs(shape), "dout"));
  std::vector<TypeParam> before_out, before_dqkv;
  ForEverySchedule([&] {
    const auto out = KernelArray<TypeParam>::Poisoned(NumOutputs(shape));
    const auto dqkv = KernelArray<TypeParam>::Poisoned(NumInputs(shape));
    const auto saved = KernelArray<float>::Poisoned(3 * shape.query_rows());
    const cuda::AttentionSaved rows = {saved.data(), saved.data() + shape.query_rows()};
    const size_t shared = testing::KernelSharedBytesMax();
    ASSERT_EQ(cuda::AttentionForward(nullptr, shape, qkv.data(), out.data(), rows, shared),
              nullptr);
    ASSERT_EQ(cuda::AttentionBackward<TypeParam>(nullptr, shape, qkv.data(), rows,
                                                 {out.data(), dout.data()}, dqkv.data(),
                                                 saved.data() + 2 * shape.query_rows(), shared),
              nullptr);
    if (before_out.empty()) {
      before_out = out.Read();
      before_dqkv = dqkv.Read();
    }
    EXPECT_TRUE(SameBits(out.Read(), before_out));
    EXPECT_TRUE(SameBits(dqkv.Read(), before_dqkv));
  });
}

TYPED_TEST(AttentionKernel, HasTheSameBitsWhateverIsLeftOutOfItsShape) {
  const AttentionShape brief = {.batch = 1, .sequence = 65, .heads = 2, .head_width = 16};
  AttentionShape whole = brief;
  whole.kv_heads = 2;
  whole.score_scale = 0.25;
  const KernelArray<TypeParam> qkv(KernelNumbers<TypeParam>(NumInputs(brief), "qkv")),
      dout(KernelNumbers<TypeParam>(NumOutputs(brief), "dout"));
  const auto gradients = [&](const AttentionShape& shape) {
    const auto out = KernelArray<TypeParam>::Poisoned(NumOutputs(shape));
    const auto dqkv = KernelArray<TypeParam>::Poisoned(NumInputs(shape));
    const auto saved = KernelArray<float>::Poisoned(3 * shape.query_rows());
    const cuda::AttentionSaved rows = {saved.data(), saved.data() + shape.query_rows()};
    const size_t shared = testing::KernelSharedBytesMax();
    EXPECT_EQ(cuda::AttentionForward(nullptr, shape, qkv.data(), out.data(), rows, shared),
              nullptr);
    EXPECT_EQ(cuda::AttentionBackward<TypeParam>(nullptr, shape, qkv.data(), rows,
                                                 {out.data(), dout.data()}, dqkv.data(),
                                                 saved.data() + 2 * shape.query_rows(), shared),
              nullptr);
    return dqkv.Read();
  };
  EXPECT_TRUE(SameBits(gradients(whole), gradients(brief)));
}

TYPED_TEST(AttentionKernel, LeavesOutTheQueriesBeforeTheFirst) {
  std::vector<AttentionShape> shapes = {
      {.batch = 1, .sequence = 90, .heads = 2, .head_width = 16, .first_query = 83},
      {.batch = 1, .sequence = 90, .heads = 2, .head_width = 100, .first_query = 83},
      {.batch = 1, .sequence = 68, .heads = 4, .kv_heads = 2, .head_width = 64, .first_query = 67},
      {.batch = 1, .sequence = 68, .heads = 6, .kv_heads = 1, .head_width = 7, .first_query = 1}};
  for (AttentionShape& shape : shapes) {
    shape.of_cache = true;
    const auto qkv = KernelNumbers<TypeParam>(NumInputs(shape), "qkv");
    Host host(shape, Widened(qkv));
    const KernelArray<TypeParam> on_qkv(qkv);
    const std::vector<TypeParam> sevens(NumOutputs(shape), TypeParam{7});
    const KernelArray<TypeParam> out(sevens);
    const auto saved = KernelArray<float>::Poisoned(2 * shape.query_rows());
    ASSERT_EQ(cuda::AttentionForward(nullptr, shape, on_qkv.data(), out.data(),
                                     {saved.data(), saved.data() + shape.query_rows()},
                                     SharedMemories<TypeParam>(shape.head_width).back()),
              nullptr);
    const auto got = out.Read();
    const int64_t first = shape.first_query * shape.out_width();
    EXPECT_EQ(std::vector(got.begin(), got.begin() + first),
              std::vector(sevens.begin(), sevens.begin() + first));
    const auto tail = [&](const auto& all) { return std::vector(all.begin() + first, all.end()); };
    EXPECT_LE(RelativeError(tail(Widened(got)), tail(host.out)), this->kTolerance);
  }
}

TEST(Attention, RefusesInASentenceWhatNoKernelComputes) {
  AttentionShape shape = {.batch = 1, .sequence = 1, .heads = 1, .head_width = 136};
  EXPECT_STREQ(
      cuda::AttentionForward<float>(nullptr, shape, nullptr, nullptr, {}, size_t{227} << 10),
      "attention: heads of more than 128 are not worked on a CUDA device");
  shape.head_width = 128;
  constexpr char kNoneFits[] =
      "attention: of heads this wide no kernel fits into the shared memory of this GPU; train in "
      "bf16 or f16, or with heads of at most 64";
  const size_t little = size_t{64} << 10;  // as of compute capability 7.5
  EXPECT_STREQ(cuda::AttentionForward<float>(nullptr, shape, nullptr, nullptr, {}, little),
               kNoneFits);
  EXPECT_STREQ(cuda::AttentionBackward<float>(nullptr, shape, nullptr, {}, {nullptr, nullptr},
                                              nullptr, nullptr, little),
               kNoneFits);
}

}  // namespace
}  // namespace muster::kernels

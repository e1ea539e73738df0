// Rotary position embedding of a CUDA device beside the host's.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/rotary.h"

namespace muster::kernels {
namespace {

using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::KernelTypes;
using ::muster::testing::Narrowed;
using ::muster::testing::SameBits;
using ::muster::testing::Widened;

template <typename T>
class RotaryOnCuda : public KernelTest<T> {};
TYPED_TEST_SUITE(RotaryOnCuda, KernelTypes, KernelTypeNames);

// Rounded once, from the same bits. Heads of usual sizes, those whose halves are no whole vectors,
// the widest, and lines that begin on no border; more heads than a block has threads for at once.
TYPED_TEST(RotaryOnCuda, HasTheHostsBitsInBothDirections) {
  std::vector<RotaryShape> shapes;
  for (const int64_t width : {2, 6, 20, 64, 80, 96, 128, 256}) {
    for (const int64_t beside : {width, int64_t{5}}) {
      shapes.push_back({.batch = 2,
                        .sequence = 3,
                        .heads = width == 64 ? 37 : 3,
                        .head_width = width,
                        .line = (width == 64 ? 37 : 3) * width + beside,
                        .first_position = beside == 5 ? 0 : 100000,
                        .inverse = beside == 5});
    }
  }
  shapes.push_back({.batch = 1, .sequence = 1, .heads = 1, .head_width = 64, .line = 64});
  RotaryFrequencies frequencies;
  for (size_t i = 0; i < frequencies.of_pair.size(); ++i) {
    frequencies.of_pair[i] = std::pow(0.93, static_cast<double>(i));
  }
  for (const RotaryShape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat(shape.heads, " heads of ", shape.head_width, " in ", shape.line));
    const auto x = KernelNumbers<TypeParam>(shape.batch * shape.sequence * shape.line, "x");
    auto expected = Widened(x);
    Rotary<float>().rotate(shape, frequencies.of_pair.data(), expected.data());
    const KernelArray<TypeParam> on_x(x);
    ASSERT_STREQ(cuda::Rotate<TypeParam>(nullptr, shape, frequencies, on_x.data()), nullptr);
    if constexpr (std::is_same_v<TypeParam, float>) {
      EXPECT_TRUE(SameBits(on_x.Read(), expected));
    } else {
      EXPECT_TRUE(SameBits(on_x.Read(), Narrowed<TypeParam>(expected)));
    }
  }
}

}  // namespace
}  // namespace muster::kernels

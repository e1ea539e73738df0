// A block of attention has the shared memory that it asks for on every GPU that the kernels are
// compiled for.
#include "worker_runtime/kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kF32 = 4, kSixteenBits = 2;

// The KiB that a block may ask for, by compute capability. Source: CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability", maximum of shared memory per thread block
struct Architecture {
  int number;
  size_t shared_kib;
};
constexpr Architecture kArchitectures[] = {{80, 163}, {86, 99},   {89, 99},
                                           {90, 227}, {100, 227}, {120, 99}};

TEST(AttentionTiles, FitEveryArchitectureForEveryHeadAndType) {
  for (const Architecture& gpu : kArchitectures) {
    for (const int bytes : {kF32, kSixteenBits}) {
      for (const int width : {64, static_cast<int>(kWidestHead)}) {
        for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
          SCOPED_TRACE(absl::StrCat("sm_", gpu.number, ", heads of ", width, ", numbers of ", bytes,
                                    " bytes, pass ", static_cast<int>(pass)));
          const size_t has = gpu.shared_kib << 10;
          const int rows = AttentionRows(pass, bytes, width, has);
          ASSERT_GT(rows, 0);
          EXPECT_LE(AttentionSharedBytes(pass, bytes, width, rows), has);
        }
      }
    }
  }
}

TEST(AttentionTiles, HaveFewRowsOnlyWhereThoseOf64DoNotFit) {
  const auto rows = [](AttentionPass pass, int bytes, int width, size_t kib) {
    return AttentionRows(pass, bytes, width, kib << 10);
  };
  for (const size_t kib : {99, 163, 227}) {
    for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
      EXPECT_EQ(rows(pass, kSixteenBits, 128, kib), 64);
      EXPECT_EQ(rows(pass, kF32, 64, kib), 64);
      EXPECT_EQ(rows(pass, kF32, 128, kib), kib == 99 ? FewRows(pass) : 64);
    }
  }
}

TEST(AttentionTiles, AreNoneWhereTheLeastDoesNotFit) {
  EXPECT_EQ(AttentionRows(AttentionPass::kForward, kF32, 128, size_t{64} << 10), 0);
  EXPECT_EQ(AttentionRows(AttentionPass::kBackward, kSixteenBits, 128, size_t{64} << 10), 0);
}

}  // namespace
}  // namespace muster::kernels::cuda

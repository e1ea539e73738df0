// Which of attention's kernels a GPU can run, by the shared memory that a block may have there.
//
// A block keeps 64 rows of its own side (queries; for dK and dV keys) and goes over the other side
// in tiles of 64 rows. Where memory is short for that, tiles have fewer: in f32 heads of 128 want
// 117 KiB and backward 150, and GPUs of compute capability 8.6, 8.9 and 12.0 have 99.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::kernels::cuda {

// Widest head; others are filled up to 64 or to this.
inline constexpr int64_t kWidestHead = 128;

// What a block may have on every GPU that the kernels are compiled for. Source: CUDA C++
// Programming Guide, "Technical Specifications per Compute Capability"
inline constexpr size_t kSharedBytesOfAll = size_t{99} << 10;

// Rows of a block's own side, and of a tile of the other one.
inline constexpr int kBlockRows = 64;

enum class AttentionPass { kForward, kBackward };

// Rows of a tile where those of 64 do not fit.
constexpr int FewRows(AttentionPass pass) { return pass == AttentionPass::kForward ? 32 : 16; }

// Numbers from row to row of `width` in shared memory: 16 bytes of nothing end each, so that rows
// begin in different banks.
constexpr int SharedStride(size_t element_bytes, int width) {
  return width + 16 / static_cast<int>(element_bytes);
}

// What backward knows of a query.
struct QueryStatistics {
  float max;
  float scale;
  float correction;
};

// What a block has whose other side comes `rows` rows at a time: both sides' tiles, scores, which
// stay in their lanes if they are of 16 bits, and statistics.
constexpr size_t AttentionSharedBytes(AttentionPass pass, size_t element_bytes, int width,
                                      int rows) {
  const auto bytes = [&](int of_rows, int of_width) {
    return element_bytes * static_cast<size_t>(of_rows * SharedStride(element_bytes, of_width));
  };
  const int own = pass == AttentionPass::kForward ? kBlockRows : 2 * kBlockRows;
  const size_t scores = element_bytes == 2 ? 0 : bytes(kBlockRows, rows);
  return bytes(own + 2 * rows, width) + scores + kBlockRows * sizeof(QueryStatistics);
}

// Whether there are kernels with FewRows besides.
constexpr bool HasFewRows(AttentionPass pass, size_t element_bytes, int width) {
  return AttentionSharedBytes(pass, element_bytes, width, kBlockRows) > kSharedBytesOfAll;
}

// Rows of a tile on a GPU where a block may have so much; 0: no kernel fits.
constexpr int AttentionRows(AttentionPass pass, size_t element_bytes, int width,
                            size_t shared_bytes_max) {
  const auto fits = [&](int rows) {
    return AttentionSharedBytes(pass, element_bytes, width, rows) <= shared_bytes_max;
  };
  if (fits(kBlockRows)) return kBlockRows;
  return HasFewRows(pass, element_bytes, width) && fits(FewRows(pass)) ? FewRows(pass) : 0;
}

}  // namespace muster::kernels::cuda

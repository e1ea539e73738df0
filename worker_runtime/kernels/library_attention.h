// What attention by a library (cuDNN's) works in as far as is known before: the plan of memory
// counts with this, and a run takes more only where no engine of the library works in as much.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/attention.h"

namespace muster::kernels {

// Within that memory arrays begin on multiples of this.
inline constexpr int64_t kLibraryAlignment = 256;
// Bytes for tables of the library's own, which took 256 bytes at most where they were looked at.
// Source: the engines of cuDNN 9.19 for an A100 and an H100 (cudnn_attention_test)
inline constexpr int64_t kLibraryTables = 4096;

constexpr int64_t RoundedUp(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Bytes of memory that the passes of a layer work in.
struct AttentionWorkspace {
  int64_t forward = 0;
  int64_t backward = 0;
};

constexpr int64_t LibraryForwardBytes() { return kLibraryTables; }

// Memory of the backward pass, in the order of its arrays.
struct LibraryBackwardMemory {
  int64_t row_sums = 0;    // of out * dout, a float per row
  int64_t query_sums = 0;  // the gradient of Q in f32; 0 where it has the same bits in every run
  int64_t workspace = 0;   // the library's
  constexpr int64_t bytes() const { return row_sums + query_sums + workspace; }
};

// Quick gradients add blocks of keys to that of Q in whatever order they end, in f32: in our array
// and, on GPUs older than Hopper, in one more of the library's. For the same bits in every run the
// library keeps all of dS instead, in 16 bits. Where heads share keys it keeps dK and dV of each,
// in 16 bits, before it adds them up. Source: the virtual arrays dK_fullhead and dV_fullhead of
// cudnn-frontend 1.32, and what the engines of cuDNN 9.19 say of six kinds of GPU from 8.0 to 12.0
constexpr LibraryBackwardMemory LibraryBackward(AttentionShape shape, bool same_bits) {
  constexpr int64_t kBlock = 128;
  constexpr int64_t kNarrow = 2;  // bytes
  const int64_t heads = shape.batch * shape.heads;
  const int64_t padded = RoundedUp(shape.sequence, kBlock);
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  const int64_t numbers = shape.query_rows() * shape.head_width;
  const int64_t of_groups =
      shape.group() == 1 ? 0 : 2 * RoundedUp(numbers * kNarrow, kLibraryAlignment);
  return {.row_sums = RoundedUp(shape.query_rows() * floats, kLibraryAlignment),
          .query_sums = same_bits ? 0 : RoundedUp(numbers * floats, kLibraryAlignment),
          .workspace = kLibraryTables + of_groups +
                       (same_bits ? heads * padded * padded * kNarrow
                                  : heads * padded * shape.head_width * floats)};
}

}  // namespace muster::kernels

// How many rows of logits are there at a time where all of them never are (chunked_loss.h), and how
// wide those are.
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster::kernels {

// Numbers: so many that products of them are large. Of bf16 half a GiB.
inline constexpr int64_t kLogitsAtOnce = int64_t{1} << 28;

// Rows of a chunk are a multiple of this, where there are as many: of the tiles that products are
// worked in.
inline constexpr int64_t kChunkRows = 256;

constexpr int64_t RowsAtOnce(int64_t rows, int64_t vocabulary, int64_t logits_at_once) {
  const int64_t most = std::max<int64_t>(logits_at_once / vocabulary, 1);
  return std::min(rows, most < kChunkRows ? most : most / kChunkRows * kChunkRows);
}

// Tensor cores read 16 bytes at a time, so rows of logits must begin on multiples of that or
// products of them fall back to kernels that are several times slower. A vocabulary that is none is
// filled up to the next multiple of a tile.
inline constexpr int64_t kAlignedColumns = 8;  // of 16 bits
inline constexpr int64_t kPaddedColumns = 128;

constexpr int64_t PaddedVocabulary(int64_t vocabulary) {
  if (vocabulary % kAlignedColumns == 0) return vocabulary;
  return (vocabulary + kPaddedColumns - 1) / kPaddedColumns * kPaddedColumns;
}

}  // namespace muster::kernels

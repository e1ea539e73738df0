// How many rows of logits are there at a time where all of them never are (chunked_loss.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster::kernels {

// Numbers: so many that products of them are large. Of bf16 half a GiB.
inline constexpr int64_t kLogitsAtOnce = int64_t{1} << 28;

constexpr int64_t RowsAtOnce(int64_t rows, int64_t vocabulary, int64_t logits_at_once) {
  return std::clamp<int64_t>(logits_at_once / vocabulary, 1, rows);
}

}  // namespace muster::kernels

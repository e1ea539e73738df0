#include "worker_runtime/plan/staging.h"

#include <algorithm>

namespace muster::plan {

size_t StagingBlocks::Take(int64_t bytes) {
  Block* best = nullptr;
  Block* empty = nullptr;
  for (Block& block : blocks_) {
    if (block.is_taken) continue;
    if (block.bytes == 0) empty = &block;
    const bool fits = block.bytes > 0 && block.bytes >= bytes;
    if (fits && (best == nullptr || block.bytes < best->bytes)) best = &block;
  }
  if (best == nullptr) {
    best = empty != nullptr ? empty : &blocks_.emplace_back();
    best->bytes = bytes;
    held_ += bytes;
    most_ = std::max(most_, held_);
  }
  best->is_taken = true;
  return best - blocks_.data();
}

void StagingBlocks::GiveBackAll() {
  held_ = 0;
  for (Block& block : blocks_) {
    block.is_taken = false;
    if (held_ + block.bytes > kMostKept) block.bytes = 0;
    held_ += block.bytes;
  }
}

}  // namespace muster::plan

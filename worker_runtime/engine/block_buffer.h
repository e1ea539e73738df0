// Elements of some blocks of the model, side by side.
//
// Threads: thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "muster/tensor.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {

class BlockBuffer {
 public:
  BlockBuffer() = default;

  static int64_t NumElements(const std::vector<plan::BlockRange>& ranges) {
    int64_t count = 0;
    for (const plan::BlockRange& range : ranges) count += range.num_elements();
    return count;
  }

  // `memory` has as many elements as the ranges, which do not overlap.
  BlockBuffer(std::vector<plan::BlockRange> ranges, Tensor memory)
      : ranges_(std::move(ranges)), memory_(std::move(memory)) {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    int64_t next = 0;
    for (const plan::BlockRange& range : ranges_) {
      first_.push_back(next);
      next += range.num_elements();
    }
    MUSTER_CHECK(next == memory_.num_elements());
  }

  bool Holds(plan::BlockRange blocks) const { return Find(blocks) >= 0; }
  // [blocks.num_elements()], all of one range.
  Tensor Part(plan::BlockRange blocks) const {
    if (blocks.num_blocks() == 0) return memory_.Slice(0, {0});
    const int64_t range = Find(blocks);
    MUSTER_CHECK(range >= 0);
    const int64_t first = first_[range] + blocks.first_element() - ranges_[range].first_element();
    return memory_.Slice(first, {blocks.num_elements()});
  }
  // All of it; empty where it was given none.
  const Tensor& whole() const { return memory_; }
  bool empty() const { return memory_.empty(); }
  int64_t num_bytes() const {
    return memory_.empty() ? 0 : static_cast<int64_t>(memory_.num_bytes());
  }

 private:
  // -1: no range has them.
  int64_t Find(plan::BlockRange blocks) const {
    const auto behind = std::upper_bound(
        ranges_.begin(), ranges_.end(), blocks.begin,
        [](int64_t block, const plan::BlockRange& range) { return block < range.end; });
    if (behind == ranges_.end() || behind->begin > blocks.begin || behind->end < blocks.end) {
      return -1;
    }
    return behind - ranges_.begin();
  }

  std::vector<plan::BlockRange> ranges_;  // ascending
  std::vector<int64_t> first_;            // by range, in elements
  Tensor memory_;
};

}  // namespace muster::engine

#include "worker_runtime/plan/staging.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace muster::plan {

size_t StagingBlocks::Take(int64_t bytes) {
  // The smallest that is large enough. A block without bytes is none.
  const auto fits = std::partition_point(by_size_.begin(), by_size_.end(), [&](size_t block) {
    return bytes_[block] < std::max<int64_t>(bytes, 1);
  });
  const size_t place = FreeFrom(fits - by_size_.begin());
  if (place < by_size_.size()) {
    next_[place] = place + 1;
    return by_size_[place];
  }
  size_t block = bytes_.size();
  if (not_kept_.empty()) {
    bytes_.push_back(bytes);
  } else {
    block = not_kept_.back();
    not_kept_.pop_back();
    bytes_[block] = bytes;
  }
  held_ += bytes;
  most_ = std::max(most_, held_);
  is_sorted_ = false;
  return block;
}

size_t StagingBlocks::FreeFrom(size_t place) {
  size_t free = place;
  while (free < next_.size() && next_[free] != free) free = next_[free];
  while (place < free) place = std::exchange(next_[place], free);
  return free;
}

void StagingBlocks::GiveBackAll() {
  held_ = 0;
  for (int64_t& bytes : bytes_) {
    if (held_ + bytes > kMostKept) {
      bytes = 0;
      is_sorted_ = false;
    }
    held_ += bytes;
  }
  if (!is_sorted_) Sort();
  std::iota(next_.begin(), next_.end(), size_t{0});
}

void StagingBlocks::Sort() {
  by_size_.clear();
  not_kept_.clear();
  for (size_t block = 0; block < bytes_.size(); ++block) {
    (bytes_[block] > 0 ? by_size_ : not_kept_).push_back(block);
  }
  std::stable_sort(by_size_.begin(), by_size_.end(),
                   [this](size_t a, size_t b) { return bytes_[a] < bytes_[b]; });
  next_.resize(by_size_.size());
  is_sorted_ = true;
}

}  // namespace muster::plan

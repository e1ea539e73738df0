#include "worker_runtime/plan/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "muster/rng.h"

namespace muster::plan {
namespace {

// This is the definition: it looks at all blocks, each time.
class BlocksOneByOne {
 public:
  size_t Take(int64_t bytes) {
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
  void GiveBackAll() {
    held_ = 0;
    for (Block& block : blocks_) {
      block.is_taken = false;
      if (held_ + block.bytes > StagingBlocks::kMostKept) block.bytes = 0;
      held_ += block.bytes;
    }
  }
  int64_t most() const { return most_; }

 private:
  struct Block {
    int64_t bytes = 0;
    bool is_taken = false;
  };
  std::vector<Block> blocks_;
  int64_t held_ = 0;
  int64_t most_ = 0;
};

TEST(StagingBlocks, AreTheSmallestThatAreLargeEnoughAndKeptToABound) {
  const Rng rng(3, "staging_test");
  for (int draw = 0; draw < 200; ++draw) {
    StagingBlocks blocks;
    BlocksOneByOne expected;
    const bool has_large = draw % 2 == 0;
    for (int call = 0; call < 20; ++call) {
      const auto count = static_cast<int>(rng.Below(30, draw, 1000 + call));
      for (int i = 0; i < count; ++i) {
        const auto kind = static_cast<int64_t>(rng.Below(6, draw, 100 * call + i));
        const int64_t bytes = kind * (has_large ? StagingBlocks::kMostKept / 9 : 32);
        const size_t block = blocks.Take(bytes);
        ASSERT_EQ(block, expected.Take(bytes)) << draw << ", " << call << ", " << i;
        ASSERT_GE(blocks.bytes(block), bytes);
      }
      blocks.GiveBackAll();
      expected.GiveBackAll();
      ASSERT_EQ(blocks.most(), expected.most());
    }
  }
}

}  // namespace
}  // namespace muster::plan

#include "worker_runtime/engine/state_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::engine {
namespace {

using plan::BlockRange;
using plan::kBlockElements;

BlockBuffer BufferOf(TensorPool& pool, const std::vector<BlockRange>& ranges) {
  return {ranges, pool.Allocate(DType::kF32, {BlockBuffer::NumElements(ranges)})};
}

TEST(ValueMemory, GivesWhatIsWholeAndElseTheShard) {
  TensorPool pool;
  const ValueMemory values(BufferOf(pool, {{0, 3}}), BufferOf(pool, {{4, 5}, {6, 7}}),
                           BufferOf(pool, {{4, 6}}), pool.Allocate(DType::kF32, {kBlockElements}));
  EXPECT_TRUE(values.HoldsWhole({1, 3}));
  EXPECT_FALSE(values.HoldsWhole({4, 5}));
  EXPECT_EQ(values.Resting({1, 3}).raw_data(),
            values.whole().Slice(kBlockElements, {2 * kBlockElements}).raw_data());
  EXPECT_EQ(values.Resting({6, 7}).num_elements(), kBlockElements);
  EXPECT_NE(values.Resting({6, 7}).raw_data(), values.Resting({4, 5}).raw_data());
  EXPECT_EQ(values.Secondary({4, 6}).num_elements(), 2 * kBlockElements);
  EXPECT_EQ(values.resting_bytes(), 5 * kBlockElements * 4);
  EXPECT_EQ(values.gathered_bytes(), 3 * kBlockElements * 4);
}

TEST(OptimizerMemory, HasNothingOfWhatIsNotKept) {
  TensorPool pool;
  const OptimizerMemory sgd({}, BufferOf(pool, {{2, 4}}), {});
  EXPECT_TRUE(sgd.Masters({2, 4}).empty());
  EXPECT_EQ(sgd.FirstMoments({3, 4}).num_elements(), kBlockElements);
  EXPECT_TRUE(sgd.SecondMoments({2, 4}).empty());
  EXPECT_EQ(sgd.num_bytes(), 2 * kBlockElements * 4);
  EXPECT_EQ(OptimizerMemory().num_bytes(), 0);
}

}  // namespace
}  // namespace muster::engine

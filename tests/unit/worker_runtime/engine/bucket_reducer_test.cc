#include "worker_runtime/engine/bucket_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "muster/rng.h"
#include "tests/support/status_matchers.h"

namespace muster::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Buckets of the parameters {4, 5}, {2, 3} and {0, 1}, in this order.
std::vector<plan::Bucket> ThreeBuckets() { return {{4, 6, 40, 60}, {2, 4, 20, 40}, {0, 2, 0, 20}}; }

class BucketReducerTest : public ::testing::Test {
 protected:
  BucketReducerTest() {
    reducer_.Begin([this](const plan::Bucket& bucket) {
      started_.push_back(bucket.first_parameter);
      return Work();
    });
  }
  BucketReducer reducer_{ThreeBuckets()};
  std::vector<int> started_;
};

TEST_F(BucketReducerTest, StartsABucketWithItsLastGradient) {
  reducer_.MarkReady(5);
  EXPECT_THAT(started_, IsEmpty());
  reducer_.MarkReady(4);
  EXPECT_THAT(started_, ElementsAre(4));
}

TEST_F(BucketReducerTest, HoldsACompleteBucketBackUntilThoseBeforeItHaveStarted) {
  for (int parameter : {2, 3, 0, 1, 4}) reducer_.MarkReady(parameter);
  EXPECT_THAT(started_, IsEmpty());
  reducer_.MarkReady(5);
  EXPECT_THAT(started_, ElementsAre(4, 2, 0));
}

TEST_F(BucketReducerTest, StartsWhatNoGradientCameForAtTheEnd) {
  for (int parameter : {5, 4, 3}) reducer_.MarkReady(parameter);
  reducer_.StartRest();
  EXPECT_THAT(started_, ElementsAre(4, 2, 0));
  EXPECT_THAT(reducer_.Wait(), testing::IsOk());
}

TEST_F(BucketReducerTest, BeginsAfreshInEveryPass) {
  for (int parameter : {5, 4, 3, 2, 1, 0}) reducer_.MarkReady(parameter);
  started_.clear();
  reducer_.Begin([this](const plan::Bucket& bucket) {
    started_.push_back(bucket.end_parameter);
    return Work();
  });
  reducer_.MarkReady(4);
  reducer_.MarkReady(5);
  EXPECT_THAT(started_, ElementsAre(6));
}

// Whatever the order of gradients, the sequence of reductions is the same: what lets every rank
// have an order of its own.
TEST(BucketReducer, StartsTheSameSequenceForEveryOrderOfGradients) {
  const Rng rng(3, "bucket_reducer_test");
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[rng.Below(i + 1, draw, i)]);
    std::vector<int> started;
    BucketReducer reducer(ThreeBuckets());
    reducer.Begin([&](const plan::Bucket& bucket) {
      started.push_back(bucket.first_parameter);
      return Work();
    });
    for (int parameter : order) reducer.MarkReady(parameter);
    ASSERT_THAT(started, ElementsAre(4, 2, 0));
  }
}

}  // namespace
}  // namespace muster::engine

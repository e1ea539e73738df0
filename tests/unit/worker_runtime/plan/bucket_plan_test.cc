#include "worker_runtime/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/rng.h"

namespace muster::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Parameters of so many elements each.
std::vector<ParameterInfo> Parameters(const std::vector<int64_t>& sizes) {
  std::vector<ParameterInfo> parameters;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parameters.push_back({.name = "p" + std::to_string(i), .shape = {sizes[i]}});
  }
  return parameters;
}

std::vector<Bucket> BucketsOf(const std::vector<int64_t>& sizes, const BucketOptions& options) {
  const std::vector<ParameterInfo> parameters = Parameters(sizes);
  const BlockLayout layout = PlanBlockLayout(parameters);
  return PlanBuckets(parameters, layout, {0, layout.num_blocks}, options);
}

std::vector<int> FirstParameters(const std::vector<Bucket>& buckets) {
  std::vector<int> first;
  for (const Bucket& bucket : buckets) first.push_back(bucket.first_parameter);
  return first;
}

TEST(PlanBuckets, PutsTheLastParametersIntoTheFirstBucket) {
  const auto buckets =
      BucketsOf({1024, 1024, 1024, 1024}, {.bytes_max = 8192, .first_bytes = 4096});
  EXPECT_THAT(FirstParameters(buckets), ElementsAre(3, 1, 0));
}

TEST(PlanBuckets, CutsALargeParameter) {
  const auto buckets = BucketsOf({1024, 4096, 1024}, {.bytes_max = 8192, .first_bytes = 8192});
  EXPECT_THAT(buckets,
              ElementsAre(Bucket{{4, 6}, 1, 3}, Bucket{{2, 4}, 1, 2}, Bucket{{0, 2}, 0, 2}));
}

TEST(PlanBuckets, TakesMultiplesOfTheRanksThatShareThem) {
  const auto buckets =
      BucketsOf({11 * 1024}, {.bytes_max = 5 * 4096, .first_bytes = 4096, .multiple = 4});
  EXPECT_THAT(buckets,
              ElementsAre(Bucket{{7, 11}, 0, 1}, Bucket{{3, 7}, 0, 1}, Bucket{{0, 3}, 0, 1}));
}

TEST(PlanBuckets, MakesNoBucketForNoParameters) { EXPECT_THAT(BucketsOf({}, {}), SizeIs(0)); }

// One check for many draws: every block in exactly one bucket, no bucket of several blocks above
// its bound, and each names the parameters that lie in it.
TEST(PlanBuckets, CoversEveryElementOnceWithinTheBounds) {
  const Rng rng(7, "bucket_plan_test");
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<int64_t> sizes(1 + rng.Below(30, draw, 0));
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + rng.Below(5000, draw, i + 1);
    const BucketOptions options = {
        .bytes_max = static_cast<int64_t>(64 + rng.Below(40'000, draw, 100)),
        .first_bytes = static_cast<int64_t>(64 + rng.Below(20'000, draw, 101))};
    const std::vector<ParameterInfo> parameters = Parameters(sizes);
    const BlockLayout layout = PlanBlockLayout(parameters);
    int64_t end = layout.num_blocks;
    for (const Bucket& bucket : BucketsOf(sizes, options)) {
      ASSERT_EQ(bucket.blocks.end, end);
      ASSERT_LT(bucket.blocks.begin, bucket.blocks.end);
      if (bucket.blocks.num_blocks() > 1) {
        ASSERT_LE(bucket.blocks.num_elements() * 4, options.bytes_max);
      }
      for (int p = 0; p < static_cast<int>(sizes.size()); ++p) {
        const bool overlaps = layout.offsets[p] < bucket.blocks.end * kBlockElements &&
                              layout.offsets[p] + sizes[p] > bucket.blocks.first_element();
        const bool named = bucket.first_parameter <= p && p < bucket.end_parameter;
        ASSERT_EQ(named, overlaps);
      }
      end = bucket.blocks.begin;
    }
    ASSERT_EQ(end, 0);
  }
}

}  // namespace
}  // namespace muster::plan

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
  return PlanBuckets(parameters, PlanFlatLayout(parameters), options);
}

std::vector<int> FirstParameters(const std::vector<Bucket>& buckets) {
  std::vector<int> first;
  for (const Bucket& bucket : buckets) first.push_back(bucket.first_parameter);
  return first;
}

TEST(PlanFlatLayout, AlignsEveryParameterAndTheWhole) {
  const FlatLayout layout = PlanFlatLayout(Parameters({1, 16, 17, 3}));
  EXPECT_THAT(layout.offsets, ElementsAre(0, 16, 32, 64));
  EXPECT_EQ(layout.num_elements, kFlatAlignment);
}

TEST(PlanFlatLayout, TakesNothingForNoParameters) { EXPECT_EQ(PlanFlatLayout({}).num_elements, 0); }

TEST(PlanBuckets, PutsTheLastParametersIntoTheFirstBucket) {
  const auto buckets =
      BucketsOf({1024, 1024, 1024, 1024}, {.bytes_max = 8192, .first_bytes = 4096});
  EXPECT_THAT(FirstParameters(buckets), ElementsAre(3, 1, 0));
}

TEST(PlanBuckets, GivesALargeParameterABucketOfItsOwn) {
  const auto buckets = BucketsOf({1024, 4096, 1024}, {.bytes_max = 8192, .first_bytes = 8192});
  EXPECT_THAT(FirstParameters(buckets), ElementsAre(2, 1, 0));
}

// A small last parameter alone would be a message that is not worth its start.
TEST(PlanBuckets, FillsTheFirstBucketUntilItHasItsSize) {
  const auto buckets = BucketsOf({1024, 1024, 4}, {.bytes_max = 1 << 20, .first_bytes = 5000});
  EXPECT_THAT(FirstParameters(buckets), ElementsAre(1, 0));
}

TEST(PlanBuckets, MakesNoBucketForNoParameters) { EXPECT_THAT(BucketsOf({}, {}), SizeIs(0)); }

// One check for many draws: every element in exactly one bucket, and no bucket of several
// parameters above its bound.
TEST(PlanBuckets, CoversEveryElementOnceWithinTheBounds) {
  const Rng rng(7, "bucket_plan_test");
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<int64_t> sizes(1 + rng.Below(30, draw, 0));
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + rng.Below(5000, draw, i + 1);
    const BucketOptions options = {
        .bytes_max = static_cast<int64_t>(64 + rng.Below(40'000, draw, 100)),
        .first_bytes = static_cast<int64_t>(64 + rng.Below(20'000, draw, 101))};
    const std::vector<ParameterInfo> parameters = Parameters(sizes);
    const FlatLayout layout = PlanFlatLayout(parameters);
    int64_t end = layout.num_elements;
    int end_parameter = static_cast<int>(sizes.size());
    const std::vector<Bucket> buckets = PlanBuckets(parameters, layout, options);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const Bucket& bucket = buckets[b];
      ASSERT_EQ(bucket.end_element, end);
      ASSERT_EQ(bucket.end_parameter, end_parameter);
      ASSERT_EQ(bucket.first_element, layout.offsets[bucket.first_parameter]);
      ASSERT_LT(bucket.first_element, bucket.end_element);
      if (bucket.end_parameter - bucket.first_parameter > 1) {
        ASSERT_LE(bucket.num_elements() * 4, options.bytes_max);
      }
      end = bucket.first_element;
      end_parameter = bucket.first_parameter;
    }
    ASSERT_EQ(end, 0);
    ASSERT_EQ(end_parameter, 0);
  }
}

}  // namespace
}  // namespace muster::plan

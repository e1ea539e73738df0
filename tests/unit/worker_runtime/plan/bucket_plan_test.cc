#include "worker_runtime/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "muster/rng.h"

namespace muster::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
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

// Backwards from the last parameter to the first, each finished before the next is come to; but for
// those that one operation uses together with the one before them.
UseTrace BackwardsTrace(int num_parameters, const std::vector<int>& with_the_one_before = {}) {
  UseTrace trace = AssumedTrace(num_parameters);
  for (int i = 0; i < num_parameters; ++i) {
    const int p = num_parameters - 1 - i;
    const bool together = std::find(with_the_one_before.begin(), with_the_one_before.end(),
                                    p + 1) != with_the_one_before.end();
    trace.backward_uses.push_back({.parameter = p, .finished = together ? i - 1 : i});
  }
  return trace;
}

std::vector<Bucket> WholeParameters(const std::vector<int64_t>& sizes, const UseTrace& trace,
                                    int64_t bytes_max) {
  const std::vector<ParameterInfo> parameters = Parameters(sizes);
  const BlockLayout layout = PlanBlockLayout(parameters);
  return PlanParameterBuckets(parameters, layout, {0, layout.num_blocks}, trace,
                              {.bytes_max = bytes_max});
}

TEST(PlanParameterBuckets, BeginWithAParameterThatBeginsABlock) {
  const auto buckets = WholeParameters({1500, 544, 2048, 3000}, BackwardsTrace(4), 8192);
  ASSERT_THAT(FirstParameters(buckets), ElementsAre(3, 2, 0));
  EXPECT_EQ(buckets[0].blocks, (BlockRange{4, 7}));
  EXPECT_EQ(buckets[1].blocks, (BlockRange{2, 4}));
  EXPECT_EQ(buckets[2].blocks, (BlockRange{0, 2}));
}

TEST(PlanParameterBuckets, HoldTogetherWhatOneOperationUses) {
  const auto buckets = WholeParameters({2048, 2000, 3000}, BackwardsTrace(3, {2}), 8192);
  ASSERT_THAT(buckets, SizeIs(2));
  EXPECT_EQ(buckets[0].blocks, (BlockRange{2, 7}));
  EXPECT_THAT(FirstParameters(buckets), ElementsAre(1, 0));
}

// Two tables in the order of their declaration, as an embedding uses them.
TEST(PlanParameterBuckets, HoldTogetherWhatIsUsedLastByOneOperation) {
  UseTrace trace = AssumedTrace(3);
  trace.backward_uses = {{.parameter = 2, .finished = 0},
                         {.parameter = 0, .finished = 1},
                         {.parameter = 1, .finished = 1}};
  EXPECT_THAT(FirstParameters(WholeParameters({1504, 2592, 3000}, trace, 8192)), ElementsAre(2, 0));
}

// A table that the head uses first stays until the end of the pass, so nothing joins it.
TEST(PlanParameterBuckets, LeaveAUnitThatComesEarlyToItself) {
  std::vector<ParameterInfo> parameters = Parameters({1500, 2000, 3000});
  parameters[1].unit = parameters[2].unit = 1;
  const BlockLayout layout = PlanBlockLayout(parameters);
  const auto first_parameters = [&](const UseTrace& trace) {
    return FirstParameters(PlanParameterBuckets(parameters, layout, {0, layout.num_blocks}, trace,
                                                {.bytes_max = 1 << 20}));
  };
  UseTrace trace = BackwardsTrace(3);
  EXPECT_THAT(first_parameters(trace), ElementsAre(0));
  trace.backward_uses.insert(trace.backward_uses.begin(), BackwardUse{});
  EXPECT_THAT(first_parameters(trace), ElementsAre(1, 0));
}

TEST(PlanParameterBuckets, CoverEveryParameterAndBlockOnce) {
  const Rng rng(8, "bucket_plan_test");
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<int64_t> sizes(1 + rng.Below(30, draw, 0));
    std::vector<int> together;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = 1 + rng.Below(5000, draw, i + 1);
      if (rng.Below(2, draw, 300 + i) == 0) sizes[i] = (1 + sizes[i] / 1024) * 1024;
      if (rng.Below(4, draw, 200 + i) == 0) together.push_back(static_cast<int>(i));
    }
    const BlockLayout layout = PlanBlockLayout(Parameters(sizes));
    int64_t end = layout.num_blocks;
    int behind = static_cast<int>(sizes.size());
    const UseTrace trace = BackwardsTrace(behind, together);
    const auto most = static_cast<int64_t>(64 + rng.Below(40'000, draw, 100));
    for (const Bucket& bucket : WholeParameters(sizes, trace, most)) {
      ASSERT_EQ(bucket.blocks.end, end);
      ASSERT_LT(bucket.blocks.begin, bucket.blocks.end);
      ASSERT_EQ(bucket.end_parameter, behind);
      ASSERT_LT(bucket.first_parameter, behind);
      ASSERT_EQ(layout.offsets[bucket.first_parameter], bucket.blocks.first_element());
      ASSERT_THAT(together, Not(Contains(bucket.end_parameter)));
      end = bucket.blocks.begin;
      behind = bucket.first_parameter;
    }
    ASSERT_EQ(end, 0);
    ASSERT_EQ(behind, 0);
  }
}

}  // namespace
}  // namespace muster::plan

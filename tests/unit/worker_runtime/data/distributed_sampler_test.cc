// DistributedSample against torch.utils.data.DistributedSampler (sampler_golden.txt, written by
// make_sampler_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace muster::testing {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct GoldenCase {
  std::string line;
  DistributedSamplerOptions options;
  int64_t epoch = 0;
  int64_t count = 0;
  uint64_t checksum = 0;
  std::vector<int64_t> elements;  // empty if there are too many to list
};

std::vector<GoldenCase> GoldenCases() {
  std::vector<GoldenCase> cases;
  std::istringstream file(ReadFile(
      absl::StrCat(kSourceDirectory, "/tests/unit/worker_runtime/data/sampler_golden.txt")));
  GoldenCase c;
  while (std::getline(file, c.line)) {
    std::istringstream fields(c.line);
    fields >> c.options.num_examples >> c.options.size >> c.options.rank >> c.options.shuffle >>
        c.options.seed >> c.epoch >> c.options.drop_last >> c.count >> c.checksum;
    EXPECT_FALSE(fields.fail()) << c.line;
    c.elements.clear();
    for (int64_t element; fields >> element;) c.elements.push_back(element);
    cases.push_back(c);
  }
  return cases;
}

uint64_t Checksum(const std::vector<int64_t>& elements) {
  uint64_t value = 0xcbf29ce484222325;
  for (const int64_t element : elements) value = (value ^ element) * 0x100000001b3;
  return value;
}

TEST(DistributedSample, GivesTheElementsThatTorchGives) {
  int compared = 0;
  for (const GoldenCase& c : GoldenCases()) {
    if (c.elements.empty() && c.count > 0) continue;
    const auto taken = DistributedSample(c.options, c.epoch);
    ASSERT_THAT(taken, IsOk()) << c.line;
    EXPECT_EQ(*taken, c.elements) << c.line;
    ++compared;
  }
  EXPECT_GE(compared, 100);
}

TEST(DistributedSample, GivesTheChecksumOfTorchForLongLists) {
  int64_t longest = 0;
  for (const GoldenCase& c : GoldenCases()) {
    const auto taken = DistributedSample(c.options, c.epoch);
    ASSERT_THAT(taken, IsOk()) << c.line;
    EXPECT_THAT(*taken, SizeIs(c.count)) << c.line;
    EXPECT_EQ(Checksum(*taken), c.checksum) << c.line;
    longest = std::max(longest, c.count);
  }
  EXPECT_EQ(longest, 100000);
}

TEST(DistributedSample, GivesEachExampleOnceIfTheyDivideEvenly) {
  std::vector<int> times(60);
  for (int rank = 0; rank < 4; ++rank) {
    const auto taken =
        DistributedSample({.num_examples = 60, .rank = rank, .size = 4, .seed = 8}, 3);
    ASSERT_THAT(taken, IsOk());
    for (const int64_t example : *taken) ++times[example];
  }
  EXPECT_EQ(times, std::vector<int>(60, 1));
}

TEST(DistributedSample, RefusesARankThatIsNotAmongTheRanks) {
  EXPECT_THAT(DistributedSample({.num_examples = 5, .size = 0}, 0),
              HasStatusCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(DistributedSample({.num_examples = 5, .rank = -1, .size = 2}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank -1")));
  EXPECT_THAT(DistributedSample({.num_examples = 5, .rank = 2, .size = 2}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 2 is not one of 2")));
}

TEST(DistributedSample, RefusesANegativeNumberOfExamples) {
  EXPECT_THAT(DistributedSample({.num_examples = -1}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("-1")));
}

TEST(DistributedSample, RefusesToShuffleWhereTorchDrawsOtherwise) {
  EXPECT_THAT(DistributedSample({.num_examples = 214748364, .size = 1000}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cannot shuffle 214748364")));
  const auto in_order =
      DistributedSample({.num_examples = 214748364, .size = 100000000, .shuffle = false}, 0);
  ASSERT_THAT(in_order, IsOk());
  EXPECT_THAT(*in_order, ::testing::ElementsAre(0, 100000000, 200000000));
}

TEST(DistributedSample, RefusesMoreForOneRankThanMemoryHolds) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(DistributedSample({.num_examples = most, .size = 2, .shuffle = false}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(most))));
}

TEST(DistributedSample, RefusesASeedThatTorchRefuses) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(DistributedSample({.num_examples = 5, .seed = most}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("epoch 1")));
  EXPECT_THAT(DistributedSample({.num_examples = 5, .seed = most}, 0), IsOk());
}

}  // namespace
}  // namespace muster::testing

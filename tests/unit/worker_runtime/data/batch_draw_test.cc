// Which windows of the data a batch holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "muster/data.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data/token_sources.h"

namespace muster::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DrawWindow, SpreadsOverTheWholeRangeEvenly) {
  constexpr int64_t kBins = 100;
  constexpr int64_t kDraws = 100000;
  const BatchOptions options = {.seed = 7, .sequence = 50};
  std::vector<int64_t> hits(kBins);
  for (int64_t i = 0; i < kDraws; ++i) {
    const int64_t first = DrawWindow(options, 50 + 10 * kBins, i / 100, i / 10 % 10, i % 10);
    ASSERT_GE(first, 0);
    ASSERT_LT(first, 10 * kBins);
    ++hits[first / 10];
  }
  double chi_squared = 0;
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const int64_t h : hits) chi_squared += (h - expected) * (h - expected) / expected;
  // Mean 99, deviation 14: a thousandth of all seeds would be outside on either side.
  EXPECT_GT(chi_squared, 57);
  EXPECT_LT(chi_squared, 149);
}

TEST(DrawWindow, ReachesTheFirstAndTheLastWindow) {
  const BatchOptions options = {.sequence = 8};
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 100; ++step) seen.insert(DrawWindow(options, 8 + 3, step, 0, 0));
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
}

TEST(DrawWindow, IsTheFirstTokenIfThereIsNoChoice) {
  EXPECT_EQ(DrawWindow({.seed = 5, .sequence = 8}, 9, 3, 4, 5), 0);
}

// In a range this large two equal draws are a mistake, not chance.
TEST(DrawWindow, DiffersBetweenSeedsStepsMicroBatchesAndRows) {
  constexpr int64_t kFar = int64_t{1} << 32;
  std::set<int64_t> seen;
  size_t draws = 0;
  for (const uint64_t seed : {0ull, 1ull, 2ull, 1ull << 32, ~0ull}) {
    for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{2}, kFar, kFar << 20}) {
      for (const int64_t micro_batch : {int64_t{0}, int64_t{1}, int64_t{2}, kFar - 1}) {
        for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{2}, kFar - 1}) {
          seen.insert(DrawWindow({.seed = seed}, int64_t{1} << 62, step, micro_batch, row));
          ++draws;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), draws);
}

TEST(DrawWindow, DependsOnNeitherRanksNorAccumulationNorBatch) {
  const BatchOptions options = {.seed = 3, .sequence = 16};
  const BatchOptions others = {.seed = 3,
                               .rank = 5,
                               .size = 8,
                               .accumulation = 4,
                               .batch = 32,
                               .sequence = 16,
                               .first_step = 9};
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(DrawWindow(options, 1000, 2, 6, row), DrawWindow(others, 1000, 2, 6, row));
  }
}

// A job that is resumed by a later version must see the same data. The numbers were computed apart,
// in Python.
TEST(DrawWindow, StaysAsItIs) {
  const BatchOptions options = {.seed = 1, .sequence = 256};
  EXPECT_THAT((std::vector<int64_t>{
                  DrawWindow(options, 1000000, 0, 0, 0), DrawWindow(options, 1000000, 0, 0, 1),
                  DrawWindow(options, 1000000, 0, 1, 0), DrawWindow(options, 1000000, 1, 0, 0)}),
              ElementsAre(182854, 716191, 838081, 109649));
}

TEST(FillBatch, TakesTheWindowsOfItsRowsAndTheTokensThatFollow) {
  const CountingSource source(100000);
  const BatchOptions options = {.seed = 4, .batch = 3, .sequence = 5};
  Batch batch;
  ASSERT_THAT(FillBatch(source, options, 6, 7, batch), IsOk());
  EXPECT_EQ(batch.step, 6);
  EXPECT_EQ(batch.micro_batch, 7);
  ASSERT_EQ(batch.inputs.size(), 15u);
  ASSERT_EQ(batch.targets.size(), 15u);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t first = DrawWindow(options, 100000, 6, 7, row);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(batch.inputs[row * 5 + i], first + i);
      EXPECT_EQ(batch.targets[row * 5 + i], first + i + 1);
    }
  }
}

TEST(FillBatch, GivesTokensThatALayerTakes) {
  const CountingSource source(100000);
  Batch batch;
  ASSERT_THAT(FillBatch(source, {.batch = 3, .sequence = 5}, 0, 0, batch), IsOk());
  EXPECT_EQ(batch.tokens().batch, 3);
  EXPECT_EQ(batch.tokens().sequence, 5);
  EXPECT_THAT(ValidateTokens(batch.tokens(), source.vocabulary()), IsOk());
}

TEST(FillBatch, LeavesNothingOfALargerBatch) {
  const CountingSource source(1000);
  Batch used;
  ASSERT_THAT(FillBatch(source, {.batch = 8, .sequence = 32}, 0, 0, used), IsOk());
  ASSERT_THAT(FillBatch(source, {.batch = 2, .sequence = 4}, 0, 0, used), IsOk());
  Batch fresh;
  ASSERT_THAT(FillBatch(source, {.batch = 2, .sequence = 4}, 0, 0, fresh), IsOk());
  EXPECT_EQ(used.inputs, fresh.inputs);
  EXPECT_EQ(used.targets, fresh.targets);
}

using Rows = std::tuple<std::vector<int32_t>, std::vector<int32_t>>;

// What all ranks read in two steps, by (step, micro-batch); EXPECTs that none is read twice.
std::map<std::pair<int64_t, int64_t>, Rows> ReadByAllRanks(int size, int64_t accumulation) {
  const CountingSource source(100000);
  std::map<std::pair<int64_t, int64_t>, Rows> all;
  for (int rank = 0; rank < size; ++rank) {
    const BatchOptions options = {.seed = 9,
                                  .rank = rank,
                                  .size = size,
                                  .accumulation = accumulation,
                                  .batch = 2,
                                  .sequence = 8,
                                  .first_step = 5};
    auto reader = BatchReader::Create(source, options);
    EXPECT_THAT(reader, IsOk());
    for (int64_t i = 0; i < 2 * accumulation; ++i) {
      const auto batch = (*reader)->Next();
      EXPECT_THAT(batch, IsOk());
      const auto key = std::pair((*batch)->step, (*batch)->micro_batch);
      EXPECT_TRUE(all.emplace(key, Rows((*batch)->inputs, (*batch)->targets)).second);
    }
  }
  return all;
}

TEST(MicroBatches, AreTheSameHoweverTheRanksShareThem) {
  const auto by_one = ReadByAllRanks(1, 4);
  ASSERT_EQ(by_one.size(), 8u);
  for (int64_t i = 0; i < 8; ++i) EXPECT_TRUE(by_one.contains({5 + i / 4, i % 4})) << i;
  EXPECT_EQ(ReadByAllRanks(2, 2), by_one);
  EXPECT_EQ(ReadByAllRanks(4, 1), by_one);
}

TEST(MicroBatches, OfAResumedJobGoOnWhereItStopped) {
  const CountingSource source(100000);
  auto whole = BatchReader::Create(source, {.accumulation = 2, .sequence = 8});
  auto resumed = BatchReader::Create(source, {.accumulation = 2, .sequence = 8, .first_step = 3});
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(resumed, IsOk());
  for (int i = 0; i < 3 * 2; ++i) ASSERT_THAT((*whole)->Next(), IsOk());
  for (int i = 0; i < 4; ++i) {
    const auto expected = (*whole)->Next();
    const auto batch = (*resumed)->Next();
    ASSERT_THAT(batch, IsOk());
    EXPECT_EQ((*batch)->step, (*expected)->step);
    EXPECT_EQ((*batch)->micro_batch, (*expected)->micro_batch);
    EXPECT_EQ((*batch)->inputs, (*expected)->inputs);
  }
}

absl::Status CreationWith(const BatchOptions& options, int64_t num_tokens = 1000) {
  const CountingSource source(num_tokens);
  const absl::Status status = BatchReader::Create(source, options).status();
  Batch batch;
  EXPECT_EQ(FillBatch(source, options, 0, 0, batch), status);
  return status;
}

TEST(BatchOptions, WithACountBelowOneAreRefused) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(CreationWith({.accumulation = bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("accumulation")));
    EXPECT_THAT(CreationWith({.batch = bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("batch size")));
    EXPECT_THAT(CreationWith({.sequence = bad}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("sequence length")));
  }
  EXPECT_THAT(CreationWith({.first_step = -1}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("first step is -1")));
}

TEST(BatchOptions, WithARankThatIsNotAmongTheRanksAreRefused) {
  EXPECT_THAT(CreationWith({.size = 0}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("0")));
  EXPECT_THAT(CreationWith({.rank = -1, .size = 2}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank -1")));
  EXPECT_THAT(CreationWith({.rank = 2, .size = 2}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 2 is not one of 2")));
}

TEST(BatchOptions, ThatAreTooLargeAreRefusedAndNotAllocated) {
  const int64_t large = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(CreationWith({.accumulation = large}), HasStatusCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(CreationWith({.batch = large}), HasStatusCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(CreationWith({.sequence = large}), HasStatusCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(CreationWith({.first_step = large}), HasStatusCode(StatusCode::kInvalidArgument));
}

TEST(BatchOptions, WithMoreTokensInARowThanTheDataHasNameBothNumbers) {
  EXPECT_THAT(CreationWith({.sequence = 256}, 256),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("has 256 tokens"), HasSubstr("need 257"))));
  EXPECT_THAT(CreationWith({.sequence = 256}, 257), IsOk());
}

}  // namespace
}  // namespace muster::testing

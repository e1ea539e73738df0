// A checkpoint that is read in any ranges, whatever ranks it was written by.
#include "worker_runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

namespace fs = std::filesystem;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

// Arrays of each dtype, most of them small, and one of several blocks of digests.
WholeArrays ArraysOfEachKind(std::mt19937& random) {
  return {RandomBits("doubles", DType::kF64, {5, 7}, random),
          RandomBits("floats", DType::kF32, {3, 4, 5}, random),
          RandomBits("bf16", DType::kBf16, {101}, random),
          RandomBits("f16", DType::kF16, {2, 1}, random),
          RandomBits("i64", DType::kI64, {9}, random),
          RandomBits("i32", DType::kI32, {17}, random),
          RandomBits("u8", DType::kU8, {1}, random),
          RandomBits("scalar", DType::kF32, {}, random),
          RandomBits("none", DType::kF32, {4, 0}, random),
          RandomBits("first_moment.large", DType::kF32, {kDigestBlockBytes / 2 + 1001}, random),
          RandomBits("second_moment.small", DType::kF32, {33}, random)};
}

const SlicedArrays& ArraysOf(const Checkpoint& checkpoint, const WholeArray& whole) {
  return whole.array.is_of_model ? checkpoint.manifest().model : checkpoint.manifest().optimizer;
}

void ExpectRange(const Checkpoint& checkpoint, const WholeArray& whole, int64_t first,
                 int64_t count) {
  const auto read =
      ReadRange(checkpoint, ArraysOf(checkpoint, whole), whole.array.name, first, count);
  ASSERT_THAT(read, IsOk());
  const size_t size = SizeOf(whole.array.dtype);
  // No matcher: it would print megabytes.
  EXPECT_TRUE(*read == whole.bytes.substr(static_cast<size_t>(first) * size, read->size()))
      << whole.array.name << "[" << first << ":" << first + count << "] has other bytes";
}

class ReadAnyRange : public ::testing::TestWithParam<int> {};

TEST_P(ReadAnyRange, OfArraysThatWereCutAnywhere) {
  const MemoryDirectory directory;
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  SavedState saved;
  saved.state.step = 3;
  saved.arrays = ArraysOfEachKind(random);
  saved.slices = RandomSlices(saved.arrays, GetParam(), 6, random);
  const auto path = SaveByRanks(directory.path(), saved);
  ASSERT_THAT(path, IsOk());

  const auto checkpoint = Checkpoint::Open(*path);

  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(checkpoint->CheckFiles(), IsOk());
  EXPECT_THAT(ReadAll(*checkpoint), IsOk());
  EXPECT_EQ(checkpoint->manifest().model.size() + checkpoint->manifest().optimizer.size(),
            saved.arrays.size());
  for (const WholeArray& whole : saved.arrays) {
    const SlicedArray& array = ArraysOf(*checkpoint, whole).at(whole.array.name);
    EXPECT_EQ(array.dtype, whole.array.dtype);
    EXPECT_EQ(array.shape, whole.array.shape);
    const int64_t elements = whole.num_elements();
    ExpectRange(*checkpoint, whole, 0, elements);
    ExpectRange(*checkpoint, whole, 0, 0);
    ExpectRange(*checkpoint, whole, elements, 0);
    if (elements > 0) ExpectRange(*checkpoint, whole, elements - 1, 1);
    for (int i = 0; i < 10; ++i) {
      const int64_t first = static_cast<int64_t>(random()) % (elements + 1);
      ExpectRange(*checkpoint, whole, first,
                  static_cast<int64_t>(random()) % (elements - first + 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SavedByRanks, ReadAnyRange, ::testing::Values(1, 2, 3, 4));

// The same array as tensor ranks write it: the parts of all, one after the other.
WholeArray InParts(const WholeArray& whole, const StoredParts& parts) {
  WholeArray stored = whole;
  stored.array.parts = parts;
  const size_t size = SizeOf(whole.array.dtype);
  for (int rank = 0; rank < parts.count; ++rank) {
    const ParameterPart part(whole.array.shape, parts.cut,
                             {.rank = rank, .size = static_cast<int>(parts.count)});
    part.ForEachRun(0, part.num_elements(), [&](const ElementRun& run) {
      stored.bytes.replace((part.first_among_parts() + run.first) * size, run.count * size,
                           whole.bytes, run.first_in_whole * size, run.count * size);
    });
  }
  return stored;
}

TEST(Checkpoint, GivesAnyRangeOfAnArrayThatLiesInParts) {
  std::mt19937 random(5);
  const WholeArray rows = RandomBits("rows", DType::kF32, {12, 10}, random);
  const WholeArray columns = RandomBits("columns", DType::kBf16, {7, 12, 2}, random);
  for (const int64_t count : {2, 3}) {
    const StoredParts of_rows = {.cut = {.axis = 0, .sections = {6, 6}}, .count = count};
    const StoredParts of_columns = {.cut = {.axis = 1, .sections = {6, 0, 6}}, .count = count};
    const WholeArrays stored = {InParts(rows, of_rows), InParts(columns, of_columns)};
    EXPECT_NE(stored[0].bytes, rows.bytes);
    const TemporaryDirectory directory;
    const auto path = SaveByRanks(directory.path(),
                                  {.arrays = stored, .slices = RandomSlices(stored, 3, 5, random)});
    ASSERT_THAT(path, IsOk());
    const auto checkpoint = Checkpoint::Open(*path);
    ASSERT_THAT(checkpoint, IsOk());
    for (const WholeArray& whole : {rows, columns}) {
      const int64_t elements = whole.num_elements();
      for (int64_t first = 0; first < elements; first += 7) {
        for (const int64_t length : {int64_t{1}, int64_t{9}, elements - first}) {
          ExpectRange(*checkpoint, whole, first, std::min(length, elements - first));
        }
      }
    }
  }
}

TEST(Checkpoint, HasArraysOfRanksThatWroteNothingOrOneSlicePerRankOfEach) {
  const MemoryDirectory directory;
  std::mt19937 random(5);
  SavedState saved;
  saved.state.step = 3;
  saved.arrays = ArraysOfEachKind(random);
  saved.slices = EvenSlices(saved.arrays, 3);
  saved.slices.emplace_back();
  const auto checkpoint = Checkpoint::Open(*SaveByRanks(directory.path(), saved));
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(checkpoint->CheckFiles(), IsOk());
  for (const WholeArray& whole : saved.arrays) {
    ExpectRange(*checkpoint, whole, 0, whole.num_elements());
  }
}

TEST(Checkpoint, TellsTheStateThatWasSaved) {
  const MemoryDirectory directory;
  SavedState saved = StateOf(12, 2.5f);
  saved.state.counters = {{"scale", "2"}};
  saved.state.metadata["caller's \"key\""] = "line\nbreak";
  saved.state.written_by = {.instance = 7, .round = 3};

  const auto checkpoint = Checkpoint::Open(*SaveByRanks(directory.path(), saved));

  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ(checkpoint->path(), directory.File("step_00000012"));
  EXPECT_EQ(checkpoint->state().step, 12);
  EXPECT_THAT(checkpoint->state().plan, ElementsAre(std::pair("kind", "ddp")));
  EXPECT_EQ(checkpoint->state().metadata, saved.state.metadata);
  EXPECT_EQ(checkpoint->state().counters, saved.state.counters);
  EXPECT_EQ(checkpoint->state().written_by, saved.state.written_by);
  EXPECT_THAT(checkpoint->state().model_id, MatchesRegex("[0-9a-f]{64}"));
  EXPECT_EQ(checkpoint->manifest().model.size(), 1u);
  EXPECT_EQ(checkpoint->manifest().optimizer.size(), 2u);
  EXPECT_THAT(ValueIn(*checkpoint), IsOkAndHolds(2.5f));
}

TEST(Checkpoint, SaysThatThereIsNone) {
  EXPECT_THAT(Checkpoint::Open("/nowhere"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

TEST(Checkpoint, ReadsNothingUnderAWrongNameTypeOrRange) {
  const MemoryDirectory directory;
  const auto checkpoint = Checkpoint::Open(*Save(directory.path(), 5));
  ASSERT_THAT(checkpoint, IsOk());
  const SlicedArrays& model = checkpoint->manifest().model;
  std::vector<float> floats(6);
  std::vector<int32_t> integers(6);
  EXPECT_THAT(checkpoint->Read(model, "z", 0, BufferOf(floats)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"z\"")));
  EXPECT_THAT(checkpoint->Read(model, "w", 0, BufferOf(integers)),
              StatusIs(kInvalid, HasSubstr("6 elements of f32, but 6 of i32")));
  for (const int64_t first : {int64_t{1}, int64_t{7}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(checkpoint->Read(model, "w", first, BufferOf(floats)),
                StatusIs(kInvalid, HasSubstr("\"w\"")))
        << first;
  }
}

TEST(Checkpoint, HasOneSha256OnAllRanksAndAnotherThanOtherCheckpoints) {
  const MemoryDirectory directory;
  const std::string one = *Save(directory.path(), 5, 1.0f);
  const std::string other = *Save(directory.path(), 6, 2.0f);
  EXPECT_THAT(Checkpoint::Open(one)->sha256(), MatchesRegex("[0-9a-f]{64}"));
  EXPECT_EQ(Checkpoint::Open(one)->sha256(), Checkpoint::Open(one)->sha256());
  EXPECT_NE(Checkpoint::Open(one)->sha256(), Checkpoint::Open(other)->sha256());
}

// Ranks compare it to see that they read the same values, so it must not rest on the step alone.
TEST(Checkpoint, HasAnotherSha256WhereOnlyTheValuesDiffer) {
  const MemoryDirectory directory;
  SavedState saved = StateOf(5, 1.0f);
  const std::string before = Checkpoint::Open(*SaveByRanks(directory.path(), saved))->sha256();
  saved.arrays[2].bytes.back() ^= 1;
  EXPECT_NE(Checkpoint::Open(*SaveByRanks(directory.path(), saved))->sha256(), before);
}

TEST(Checkpoint, ThatIsReplacedWhileItIsReadIsOfOnePieceOrGone) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 5, 1.0f);
  const auto untouched = Checkpoint::Open(path);
  const auto begun = Checkpoint::Open(path);
  ASSERT_THAT(untouched, IsOk());
  ASSERT_THAT(begun, IsOk());
  ASSERT_THAT(ValueIn(*begun), IsOkAndHolds(1.0f));

  ASSERT_THAT(Save(directory.path(), 5, 2.0f), IsOk());

  EXPECT_THAT(ValueIn(*begun), IsOkAndHolds(1.0f)) << "its files are open";
  EXPECT_THAT(ValueIn(*untouched), StatusIs(kUnavailable, HasSubstr(path)));
  EXPECT_THAT(ValueIn(path), IsOkAndHolds(2.0f));
}

// A search that took this for damage would go back in the training.
TEST(Checkpoint, ThatIsReplacedIsNotTakenForIncomplete) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 5, 1.0f);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  ASSERT_THAT(Save(directory.path(), 5, 2.0f), IsOk());
  EXPECT_THAT(checkpoint->CheckFiles(), StatusIs(kUnavailable, HasSubstr(path)));
}

TEST(Checkpoint, IsReadAfterItsDirectoryWasRenamed) {
  const MemoryDirectory directory;
  const auto checkpoint = Checkpoint::Open(*Save(directory.path(), 5, 1.0f));
  ASSERT_THAT(checkpoint, IsOk());
  fs::rename(directory.File("step_00000005"), directory.File("moved"));
  EXPECT_THAT(checkpoint->CheckFiles(), IsOk());
  EXPECT_THAT(ValueIn(*checkpoint), IsOkAndHolds(1.0f));
}

}  // namespace
}  // namespace muster::checkpoint

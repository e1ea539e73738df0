// Which checkpoint a user means by a directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/manifest_texts.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/checkpoint.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr char kSlices[] = "/slices_00001.safetensors";

// What a load does: it takes the newest whose bytes are those that were written.
struct Found {
  std::string path;
  std::vector<std::string> passed_over;
};
absl::StatusOr<Found> LoadFrom(const std::string& directory) {
  absl::StatusOr<CheckpointSearch> search = CheckpointSearch::In(directory);
  if (!search.ok()) return search.status();
  for (;;) {
    const absl::StatusOr<Checkpoint> next = search->Next();
    if (!next.ok()) return next.status();
    const absl::Status read = ReadAll(*next);
    if (read.ok()) return Found{next->path(), search->passed_over()};
    if (!absl::IsInvalidArgument(read)) return read;
    search->PassOver(read.message());
  }
}

TEST(CheckpointSearch, TakesTheHighestStepByNumber) {
  const MemoryDirectory directory;
  for (int64_t step : {99'999'999, 100'000'000, 5}) {
    ASSERT_THAT(Save(directory.path(), step), IsOk());
  }
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_100000000")));
}

TEST(CheckpointSearch, TakesTheDirectoryItselfIfItIsOne) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 5);
  EXPECT_THAT(NewestIn(path), IsOkAndHolds(path));
}

TEST(CheckpointSearch, GivesOneAfterTheOtherFromTheNewestOn) {
  const MemoryDirectory directory;
  for (int64_t step : {5, 7, 6}) ASSERT_THAT(Save(directory.path(), step), IsOk());
  auto search = CheckpointSearch::In(directory.path());
  ASSERT_THAT(search, IsOk());
  for (int64_t step : {7, 6, 5}) {
    const auto next = search->Next();
    ASSERT_THAT(next, IsOk());
    EXPECT_EQ(next->state().step, step);
    search->PassOver("step " + std::to_string(step) + " does not please");
  }
  EXPECT_THAT(search->Next(), StatusIs(kInvalid, AllOf(HasSubstr("step 7 does not please; step 6"),
                                                       HasSubstr("another checkpoint"))));
}

TEST(CheckpointSearch, PassesOverWhatIsNotComplete) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  fs::remove(directory.File("step_00000006/slices_00000.safetensors"));
  fs::create_directory(directory.File("step_00000007"));
  for (const char* name :
       {"step_", "step_9x", "step_99999999999999999999", ".step_00000009.ab", "step_-9"}) {
    fs::copy(directory.File("step_00000005"), directory.File(name));
  }
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000005")));
}

TEST(CheckpointSearch, SaysWhatIsWrongWithNewerOnes) {
  const MemoryDirectory directory;
  for (int64_t step : {3, 4, 5, 6, 7, 8, 9, 10}) ASSERT_THAT(Save(directory.path(), step), IsOk());
  const auto step = [&directory](int number) { return directory.File(NameOfStep(number)); };
  fs::remove(step(3) + "/training.json");  // older than the one that is taken
  FlipLastByte(step(5) + kSlices);
  FlipLastByte(step(6) + "/digests.sha256");
  FlipByte({step(7) + "/training.json", 60});
  fs::remove(step(8) + "/digests.sha256");
  fs::resize_file(step(9) + kSlices, 100);
  fs::remove(step(10) + kSlices);
  fs::remove(step(10) + "/slices_00000.safetensors");
  ASSERT_THAT(Save(directory.path(), 11), IsOk());
  fs::remove(step(11) + "/training.json");

  const auto found = LoadFrom(directory.path());

  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->path, step(4));
  EXPECT_THAT(
      found->passed_over,
      ElementsAre(
          step(11) + " is incomplete: it lacks training.json",
          step(10) + " is incomplete: it lacks slices_00000.safetensors and "
                     "slices_00001.safetensors",
          AllOf(HasSubstr(step(9) + kSlices + " is damaged"), HasSubstr("100 bytes")),
          step(8) + " is incomplete: it lacks digests.sha256",
          HasSubstr(step(7) + "/training.json is damaged"),
          HasSubstr(step(6) + "/digests.sha256 is damaged"),
          HasSubstr(step(5) + kSlices + " is damaged: \"second_moment.w\" has other bytes")));
}

TEST(CheckpointSearch, RefusesADamagedOneThatWasNamedItself) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  const std::string path = *Save(directory.path(), 6);
  FlipLastByte(path + kSlices);
  EXPECT_THAT(LoadFrom(path),
              StatusIs(kInvalid, AllOf(HasSubstr("is damaged"), HasSubstr("another checkpoint"))));
  fs::remove(path + kSlices);
  EXPECT_THAT(LoadFrom(path),
              StatusIs(kInvalid, HasSubstr("is incomplete: it lacks slices_00001.safetensors")));
  fs::remove(path + "/training.json");
  EXPECT_THAT(LoadFrom(path), StatusIs(kInvalid, HasSubstr(path + " is incomplete")));
}

TEST(CheckpointSearch, NamesEachWhereNoneIsWhole) {
  const MemoryDirectory directory;
  for (const int64_t step : {5, 6}) FlipLastByte(*Save(directory.path(), step) + kSlices);
  EXPECT_THAT(LoadFrom(directory.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("step_00000006"), HasSubstr("step_00000005"))));
}

// The caller's fault, or an older program's: no reason to go back in the training.
TEST(CheckpointSearch, PassesOverNothingThatDoesNotFitOrThatANewerProgramHasWritten) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  const std::string path = *Save(directory.path(), 6);
  const auto another_model = [](const Checkpoint& checkpoint) {
    return absl::InvalidArgumentError(checkpoint.path() + " is of another model");
  };
  EXPECT_THAT(CheckpointSearch::In(directory.path())->Next(another_model),
              StatusIs(kInvalid, path + " is of another model"));
  WriteFile(path + "/training.json",
            WithChecksum({{"format", "muster.checkpoint"}, {"version", 4}}));
  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr(path + "/training.json"), HasSubstr("use a newer Muster"))));
}

TEST(CheckpointSearch, AsksWhetherItFitsOnlyOfWhatIsComplete) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  fs::remove(*Save(directory.path(), 6) + kSlices);
  std::vector<int64_t> asked;
  const auto next = CheckpointSearch::In(directory.path())->Next([&](const Checkpoint& checkpoint) {
    asked.push_back(checkpoint.state().step);
    return absl::OkStatus();
  });
  ASSERT_THAT(next, IsOk());
  EXPECT_THAT(asked, ElementsAre(5));
}

TEST(CheckpointSearch, FallsBackToOneThatAKilledWriterPutAside) {
  const MemoryDirectory directory;
  const std::string aside = directory.File(".step_00000006.replaced.00000000000000aa");
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  fs::rename(directory.File("step_00000006"), aside);
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(aside));

  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000006")));
}

TEST(CheckpointSearch, SaysWhatItLookedFor) {
  const MemoryDirectory directory;
  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(kNotFound, AllOf(HasSubstr(directory.path()), HasSubstr("training.json"),
                                        HasSubstr("step_<number>"))));
  EXPECT_THAT(NewestIn(directory.File("none")), StatusIs(kNotFound, HasSubstr("none")));
}

// A training that may begin where there is no checkpoint yet must not begin over one that is
// broken.
TEST(CheckpointSearch, DoesNotTakeWhatIsIncompleteForNothing) {
  for (const char* name : {"slices_00001.safetensors", "digests.sha256", "training.json"}) {
    const MemoryDirectory directory;
    fs::remove(*Save(directory.path(), 6) + "/" + name);
    EXPECT_THAT(LoadFrom(directory.path()),
                StatusIs(kInvalid, AllOf(HasSubstr("step_00000006"), HasSubstr("lacks"))));
    EXPECT_THAT(LoadFrom(directory.File("step_00000006")), StatusIs(kInvalid, HasSubstr("lacks")));
  }
}

TEST(CheckpointSearch, DoesNotTakeADirectoryOfOtherFilesForAnEmptyOne) {
  const MemoryDirectory directory;
  WriteFile(directory.File("notes.txt"), "mine");
  EXPECT_THAT(NewestIn(directory.path()), StatusIs(kInvalid, HasSubstr("notes.txt")));
}

TEST(CheckpointSearch, TakesWhatAKilledWriterLeftForNothing) {
  const MemoryDirectory directory;
  fs::create_directory(directory.File(".step_00000006.00000000000000aa"));
  EXPECT_THAT(NewestIn(directory.path()), StatusIs(kNotFound, HasSubstr("there is no")));
}

}  // namespace
}  // namespace muster::checkpoint

// Checkpoints that are written: in their place in one step, or not at all.
#include "worker_runtime/checkpoint/new_checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/publish.h"
#include "worker_runtime/checkpoint/writer_name.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FileExists;
using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(NewCheckpoint, IsReadBackInFull) {
  const MemoryDirectory directory;
  const std::string home = directory.File("runs/first");

  const auto path = Save(home, 100, 2.5f);

  ASSERT_THAT(path, IsOkAndHolds(home + "/step_00000100"));
  EXPECT_THAT(ValueIn(*path), IsOkAndHolds(2.5f));
}

TEST(NewCheckpoint, LeavesItsFilesAndNoOther) {
  const MemoryDirectory directory;

  ASSERT_THAT(Save(directory.path(), 7), IsOk());
  ASSERT_THAT(Save(directory.path(), 7), IsOk());

  EXPECT_THAT(FilesBelow(directory.path()),
              ElementsAre("step_00000007/digests.sha256", "step_00000007/slices_00000.safetensors",
                          "step_00000007/slices_00001.safetensors", "step_00000007/training.json"));
}

TEST(NewCheckpoint, HasTheSameBytesForTheSameState) {
  const MemoryDirectory a;
  const MemoryDirectory b;
  ASSERT_THAT(Save(a.path(), 7), IsOk());
  ASSERT_THAT(Save(b.path(), 7), IsOk());

  for (const std::string& file : FilesBelow(a.path())) {
    EXPECT_EQ(ReadFile(a.File(file)), ReadFile(b.File(file))) << file;
  }
}

TEST(NewCheckpoint, ReplacesOneOfTheSameStepAndOfOtherRanks) {
  const MemoryDirectory directory;
  SavedState of_four = StateOf(7, 1.0f);
  of_four.slices = EvenSlices(of_four.arrays, 4);
  ASSERT_THAT(SaveByRanks(directory.path(), of_four), IsOk());

  const auto path = Save(directory.path(), 7, 2.0f);

  ASSERT_THAT(path, IsOk());
  EXPECT_THAT(ValueIn(*path), IsOkAndHolds(2.0f));
  EXPECT_FALSE(FileExists(*path + "/slices_00002.safetensors"));
}

TEST(NewCheckpoint, IsNotSeenBeforeItIsPublished) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5, 1.0f), IsOk());
  const SavedState saved = StateOf(6, 2.0f);
  auto begun = NewCheckpoint::Begin(directory.File("step_00000006"), saved.state);
  ASSERT_THAT(begun, IsOk());
  ASSERT_THAT(WriteAsRank(begun->hidden(), 0, saved), IsOk());
  EXPECT_EQ(begun->place(), directory.File("step_00000006"));
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000005")));
  EXPECT_FALSE(FileExists(begun->place()));
}

TEST(NewCheckpoint, RemovesWhatWasNotPublished) {
  const MemoryDirectory directory;
  const SavedState saved = StateOf(6, 2.0f);
  {
    auto begun = NewCheckpoint::Begin(directory.File("step_00000006"), saved.state);
    ASSERT_THAT(begun, IsOk());
    const NewCheckpoint moved = *std::move(begun);
    ASSERT_THAT(WriteAsRank(moved.hidden(), 0, saved), IsOk());
    EXPECT_TRUE(fs::exists(moved.hidden()));
  }
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(NewCheckpoint, PublishesNothingThatIsRefusedAndLeavesTheOneBefore) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5, 1.0f), IsOk());
  const std::vector<std::string> before = FilesBelow(directory.path());
  const auto refused = SaveByRanks(directory.path(), StateOf(5, 2.0f), [&] {
    EXPECT_GT(FilesBelow(directory.path()).size(), before.size()) << "all files are written";
    return absl::FailedPreconditionError("not now");
  });
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, "not now"));
  EXPECT_THAT(ValueIn(directory.File("step_00000005")), IsOkAndHolds(1.0f));
  EXPECT_EQ(FilesBelow(directory.path()), before);
}

TEST(NewCheckpoint, NeverReplacesWhatALaterRoundHasWritten) {
  const MemoryDirectory directory;
  const auto write = [&](JobRound round) {
    SavedState saved = StateOf(5, 1.0f);
    saved.state.written_by = round;
    return SaveByRanks(directory.path(), saved);
  };
  ASSERT_THAT(write({.instance = 7, .round = 1}), IsOk());
  ASSERT_THAT(write({.instance = 7, .round = 2}), IsOk());
  EXPECT_THAT(write({.instance = 7, .round = 1}),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("round 2")));
  EXPECT_EQ(Checkpoint::Open(directory.File("step_00000005"))->state().written_by.round, 2);
  EXPECT_THAT(write({.instance = 8, .round = 0}), IsOk()) << "a later life of the job";
  EXPECT_THAT(write({}), IsOk()) << "without an agent";
}

TEST(NewCheckpoint, ReplacesALinkAndNotWhatItPointsTo) {
  const MemoryDirectory directory;
  const MemoryDirectory elsewhere;
  ASSERT_THAT(Save(elsewhere.path(), 7, 1.0f), IsOk());
  fs::create_symlink(elsewhere.File("step_00000007"), directory.File("step_00000007"));

  const auto path = Save(directory.path(), 7, 2.0f);

  ASSERT_THAT(path, IsOk());
  EXPECT_THAT(ValueIn(*path), IsOkAndHolds(2.0f));
  EXPECT_THAT(ValueIn(elsewhere.File("step_00000007")), IsOkAndHolds(1.0f));
}

TEST(NewCheckpoint, TouchesNothingOfAnotherNature) {
  const MemoryDirectory directory;
  fs::create_directory(directory.File("step_00000007"));
  WriteFile(directory.File("step_00000007/thesis.tex"), "all of it");
  WriteFile(directory.File("step_00000008"), "a file");

  EXPECT_THAT(Save(directory.path(), 7), StatusIs(kInvalid, HasSubstr("is not a checkpoint")));
  EXPECT_THAT(Save(directory.path(), 8), StatusIs(kInvalid, HasSubstr("step_00000008")));

  EXPECT_THAT(FilesBelow(directory.path()),
              ElementsAre("step_00000007/thesis.tex", "step_00000008"));
}

// Training went on from before it, and comes to its step again.
TEST(NewCheckpoint, ReplacesAnIncompleteCheckpoint) {
  const MemoryDirectory directory;
  for (const char* name : {"training.json", "digests.sha256", "slices_00001.safetensors"}) {
    const std::string path = *Save(directory.path(), 6, 1.0f);
    fs::remove(path + "/" + name);
    ASSERT_THAT(Save(directory.path(), 6, 2.0f), IsOk());
    EXPECT_THAT(ValueIn(path), IsOkAndHolds(2.0f));
  }
}

TEST(NewCheckpoint, RefusesAFileAsItsDirectory) {
  const MemoryDirectory directory;
  WriteFile(directory.File("file"), "");

  EXPECT_THAT(Save(directory.File("file"), 1), StatusIs(kInvalid, HasSubstr("it is a file")));
  EXPECT_THAT(Save(directory.File("file/below"), 1),
              StatusIs(kInvalid, HasSubstr("a part of its path is a file")));
}

TEST(NewCheckpoint, RefusesANegativeStepAndTextThatIsNotUtf8BeforeItWritesAnything) {
  const MemoryDirectory directory;
  EXPECT_THAT(NewCheckpoint::Begin(directory.File("step"), {.step = -1}),
              StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(NewCheckpoint::Begin(directory.File("step"), {.metadata = {{"k", "\xff"}}}),
              StatusIs(kInvalid, HasSubstr("UTF-8")));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(NewCheckpoint, LeavesNothingOfACheckpointThatARankCannotFinish) {
  const MemoryDirectory directory;
  SavedState saved = StateOf(1, 1.0f);
  saved.arrays[2].array.name = "\xff";  // of which rank 1 has the second half

  EXPECT_THAT(SaveByRanks(directory.path(), saved), StatusIs(kInvalid, HasSubstr("slices_0000")));

  EXPECT_TRUE(fs::is_empty(directory.path()));
}

// Makes `path` look as if nothing had been written into it for `hours`.
void Age(const std::string& path, int hours) {
  const struct timespec times[2] = {{time(nullptr) - hours * 3600, 0},
                                    {time(nullptr) - hours * 3600, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(RemoveLeftovers, RemovesWhatAKilledWriterLeftADayAgo) {
  const MemoryDirectory directory;
  for (const char* name :
       {".step_00000003.00000000000000aa", ".step_00000003.00000000000000bb", ".cache"}) {
    fs::create_directory(directory.File(name));
    WriteFile(directory.File(std::string(name) + "/slices_00000.safetensors"), "half");
  }
  Age(directory.File(".step_00000003.00000000000000aa"), 25);
  Age(directory.File(".cache"), 25);

  RemoveLeftovers(directory.path());

  EXPECT_FALSE(FileExists(directory.File(".step_00000003.00000000000000aa")));
  EXPECT_TRUE(FileExists(directory.File(".step_00000003.00000000000000bb")));  // perhaps alive
  EXPECT_TRUE(FileExists(directory.File(".cache")));                           // not ours
}

// The name that a process of this machine had which has ended.
std::string NameOfEndedWriter() {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string name = WriterName();
    _exit(write(ends[1], name.data(), name.size()) < 0);
  }
  close(ends[1]);
  char name[256];
  const ssize_t length = read(ends[0], name, sizeof(name));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return std::string(name, static_cast<size_t>(std::max<ssize_t>(length, 0)));
}

TEST(RemoveLeftovers, RemovesAtOnceWhatAWriterLeftThatWasKilledOnThisMachine) {
  const MemoryDirectory directory;
  const std::string killed = ".step_00000003." + NameOfEndedWriter() + ".00000000000000aa";
  const std::string alive = ".step_00000003." + WriterName() + ".00000000000000bb";
  const std::string elsewhere = ".step_00000003.0123abcd-4026531836-1-7.00000000000000cc";
  for (const std::string& name : {killed, alive, elsewhere}) {
    fs::create_directory(directory.File(name));
    WriteFile(directory.File(name + "/slices_00000.safetensors"), "half");
  }

  RemoveLeftovers(directory.path());

  EXPECT_FALSE(FileExists(directory.File(killed)));
  EXPECT_TRUE(FileExists(directory.File(alive)));
  EXPECT_TRUE(FileExists(directory.File(elsewhere)));
}

TEST(RemoveLeftovers, KeepsTheOnlyCopyOfAStepThatAKilledWriterPutAside) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 3, 3.0f), IsOk());
  const std::string aside = directory.File(".step_00000003.replaced.00000000000000aa");
  fs::rename(directory.File("step_00000003"), aside);
  Age(aside, 25);

  RemoveLeftovers(directory.path());
  EXPECT_TRUE(FileExists(aside));

  ASSERT_THAT(Save(directory.path(), 3), IsOk());
  EXPECT_FALSE(FileExists(aside));
}

TEST(RemoveLeftovers, LeavesCheckpointsAlone) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3, 3.0f);
  Age(path, 25);
  RemoveLeftovers(directory.path());
  RemoveLeftovers(directory.File("none"));
  EXPECT_THAT(ValueIn(path), IsOkAndHolds(3.0f));
}

TEST(RemoveSuperseded, LeavesTheNewestUpToTheStepAndWhatIsNoCheckpoint) {
  const MemoryDirectory directory;
  for (const int64_t step : {1, 2, 3, 5, 8}) ASSERT_THAT(Save(directory.path(), step), IsOk());
  fs::remove(directory.File("step_00000002/training.json"));
  fs::create_directory(directory.File("step_00000000"));
  WriteFile(directory.File("notes"), "mine");
  RemoveSuperseded(directory.path(), 5, 3);
  EXPECT_TRUE(FileExists(directory.File("step_00000001")));
  RemoveSuperseded(directory.path(), 5, 2);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("notes", "step_00000000", "step_00000002",
                                          "step_00000003", "step_00000005", "step_00000008"));
}

TEST(RemoveSuperseded, LeavesWhatALaterRoundHasWritten) {
  const MemoryDirectory directory;
  SavedState of_later = StateOf(5, 1.0f);
  of_later.state.written_by = {.instance = 7, .round = 2};
  ASSERT_THAT(SaveByRanks(directory.path(), of_later), IsOk());
  ASSERT_THAT(Save(directory.path(), 9), IsOk());
  RemoveSuperseded(directory.path(), 9, 1, {.instance = 7, .round = 1});
  EXPECT_TRUE(FileExists(directory.File("step_00000005")));
  RemoveSuperseded(directory.path(), 9, 1, {.instance = 7, .round = 2});
  EXPECT_FALSE(FileExists(directory.File("step_00000005")));
}

TEST(PublishDirectory, PutsTheOldOneAsideWhereNamesCannotBeExchanged) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5, 1.0f), IsOk());
  ASSERT_THAT(Save(directory.File("new"), 5, 2.0f), IsOk());
  fs::rename(directory.File("new/step_00000005"), directory.File(".written"));
  fs::remove(directory.File("new"));

  ASSERT_THAT(PublishDirectory(directory.File(".written"), directory.File("step_00000005"),
                               Replacing::kAside),
              IsOk());

  EXPECT_THAT(ValueIn(directory.File("step_00000005")), IsOkAndHolds(2.0f));
  EXPECT_EQ(FilesBelow(directory.path()).size(), 4u);
}

TEST(PublishDirectory, LeavesWhatItCannotPublish) {
  const MemoryDirectory directory;
  fs::create_directory(directory.File("written"));
  WriteFile(directory.File("place"), "a file");

  EXPECT_THAT(PublishDirectory(directory.File("written"), directory.File("place")),
              StatusIs(kInvalid));

  EXPECT_TRUE(FileExists(directory.File("written")));
  EXPECT_EQ(ReadFile(directory.File("place")), "a file");
}

TEST(NameOfSlices, IsOfFiveDigits) {
  EXPECT_EQ(NameOfSlices(3), "slices_00003.safetensors");
  EXPECT_EQ(NameOfStep(100), "step_00000100");
  for (const char* name : {"slices_00003.safetensors", "training.json", "digests.sha256",
                           "model.safetensors", "optimizer.safetensors"}) {
    EXPECT_TRUE(IsFileOfCheckpoint(name)) << name;
  }
  for (const char* name : {"thesis.tex", "slices_00003", ".slices_00003.safetensors.ab", ""}) {
    EXPECT_FALSE(IsFileOfCheckpoint(name)) << name;
  }
}

}  // namespace
}  // namespace muster::checkpoint

// Whole checkpoints: saved, found, replaced, damaged.
#include "worker_runtime/checkpoint/whole_checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "worker_runtime/checkpoint/publish.h"
#include "worker_runtime/checkpoint/training_json.h"
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
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

// Saves parameters and moments that are all `value`.
absl::StatusOr<std::string> Save(const std::string& directory, int64_t step, float value = 1.0f) {
  const std::vector<float> values(6, value);
  return WriteWholeCheckpoint(directory,
                              {step, {{"kind", "ddp"}}, {{"value", std::to_string(value)}}},
                              {NamedArray{"w", {2, 3}, ConstBufferOf(values)}},
                              {NamedArray{"first_moment.w", {2, 3}, ConstBufferOf(values)},
                               NamedArray{"second_moment.w", {2, 3}, ConstBufferOf(values)}});
}

absl::StatusOr<std::string> NewestIn(const std::string& directory) {
  const auto newest = OpenNewestCheckpoint(directory);
  if (!newest.ok()) return newest.status();
  return newest->path;
}

void FlipLastByte(const std::string& file) {
  std::string bytes = ReadFile(file);
  bytes.back() ^= 0x80;
  WriteFile(file, bytes);
}

float ValueIn(const std::string& checkpoint) {
  const auto whole = OpenWholeCheckpoint(checkpoint);
  std::vector<float> values(6);
  EXPECT_THAT(whole, IsOk());
  if (!whole.ok()) return -1;
  EXPECT_THAT(whole->model.Read("w", BufferOf(values)), IsOk());
  return values[0];
}

TEST(WriteWholeCheckpoint, IsReadBackInFull) {
  const MemoryDirectory directory;
  const std::string home = directory.File("runs/first");

  const auto path = Save(home, 100, 2.5f);

  ASSERT_THAT(path, IsOkAndHolds(home + "/step_00000100"));
  const auto whole = OpenWholeCheckpoint(*path);
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(whole->state.step, 100);
  EXPECT_THAT(whole->state.plan, ElementsAre(std::pair("kind", "ddp")));
  EXPECT_THAT(whole->state.metadata, ElementsAre(std::pair("value", "2.500000")));
  EXPECT_EQ(whole->optimizer.arrays().size(), 2u);
  EXPECT_EQ(ValueIn(*path), 2.5f);
}

TEST(WriteWholeCheckpoint, LeavesTheThreeFilesAndNoOther) {
  const MemoryDirectory directory;

  ASSERT_THAT(Save(directory.path(), 7), IsOk());
  ASSERT_THAT(Save(directory.path(), 7), IsOk());

  EXPECT_THAT(FilesBelow(directory.path()),
              ElementsAre("step_00000007/model.safetensors", "step_00000007/optimizer.safetensors",
                          "step_00000007/training.json"));
}

TEST(WriteWholeCheckpoint, WritesTheSameBytesForTheSameState) {
  const MemoryDirectory a;
  const MemoryDirectory b;
  ASSERT_THAT(Save(a.path(), 7), IsOk());
  ASSERT_THAT(Save(b.path(), 7), IsOk());

  for (const std::string& file : FilesBelow(a.path())) {
    EXPECT_EQ(ReadFile(a.File(file)), ReadFile(b.File(file))) << file;
  }
}

TEST(WriteWholeCheckpoint, ReplacesOneOfTheSameStep) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 7, 1.0f), IsOk());

  const auto path = Save(directory.path(), 7, 2.0f);

  ASSERT_THAT(path, IsOk());
  EXPECT_EQ(ValueIn(*path), 2.0f);
}

TEST(WriteWholeCheckpoint, PublishesNothingThatIsRefusedAndLeavesTheOneBefore) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5, 1.0f), IsOk());
  const auto refused = WriteWholeCheckpoint(directory.path(), {.step = 5}, {}, {}, nullptr, [] {
    return absl::FailedPreconditionError("not now");
  });
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, "not now"));
  EXPECT_EQ(ValueIn(directory.File("step_00000005")), 1.0f);
  EXPECT_THAT(FilesBelow(directory.path()), ::testing::SizeIs(3));
}

TEST(WriteWholeCheckpoint, NeverReplacesWhatALaterRoundHasWritten) {
  const MemoryDirectory directory;
  const auto write = [&](JobRound round) {
    return WriteWholeCheckpoint(directory.path(), {.step = 5, .written_by = round}, {}, {});
  };
  ASSERT_THAT(write({.instance = 7, .round = 1}), IsOk());
  ASSERT_THAT(write({.instance = 7, .round = 2}), IsOk());
  EXPECT_THAT(write({.instance = 7, .round = 1}),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("round 2")));
  EXPECT_THAT(write({.instance = 8, .round = 0}), IsOk()) << "a later life of the job";
  EXPECT_THAT(write({}), IsOk()) << "without an agent";
}

TEST(WriteWholeCheckpoint, ReplacesALinkAndNotWhatItPointsTo) {
  const MemoryDirectory directory;
  const MemoryDirectory elsewhere;
  ASSERT_THAT(Save(elsewhere.path(), 7, 1.0f), IsOk());
  fs::create_symlink(elsewhere.File("step_00000007"), directory.File("step_00000007"));

  const auto path = Save(directory.path(), 7, 2.0f);

  ASSERT_THAT(path, IsOk());
  EXPECT_EQ(ValueIn(*path), 2.0f);
  EXPECT_EQ(ValueIn(elsewhere.File("step_00000007")), 1.0f);
}

TEST(WriteWholeCheckpoint, TouchesNothingOfAnotherNature) {
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
TEST(WriteWholeCheckpoint, ReplacesAnIncompleteCheckpoint) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 6, 1.0f), IsOk());
  fs::remove(directory.File("step_00000006/training.json"));
  ASSERT_THAT(Save(directory.path(), 6, 2.0f), IsOk());
  EXPECT_EQ(ValueIn(directory.File("step_00000006")), 2.0f);
}

TEST(WriteWholeCheckpoint, RefusesAFileAsItsDirectory) {
  const MemoryDirectory directory;
  WriteFile(directory.File("file"), "");

  EXPECT_THAT(Save(directory.File("file"), 1), StatusIs(kInvalid, HasSubstr("it is a file")));
  EXPECT_THAT(Save(directory.File("file/below"), 1),
              StatusIs(kInvalid, HasSubstr("a part of its path is a file")));
  EXPECT_THAT(Save("", 1), StatusIs(kInvalid));
}

TEST(WriteWholeCheckpoint, RefusesANegativeStepAndTextThatIsNotUtf8) {
  const MemoryDirectory directory;

  EXPECT_THAT(Save(directory.path(), -1), StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(
      WriteWholeCheckpoint(directory.path(), {.step = 1, .metadata = {{"k", "\xff"}}}, {}, {}),
      StatusIs(kInvalid, HasSubstr("UTF-8")));
  EXPECT_THAT(FilesBelow(directory.path()), IsEmpty());
}

TEST(WriteWholeCheckpoint, LeavesNothingOfACheckpointThatItCannotFinish) {
  const MemoryDirectory directory;
  const std::vector<float> values(1);

  const auto path = WriteWholeCheckpoint(directory.path(), {.step = 1},
                                         {NamedArray{"w", {1}, ConstBufferOf(values)}},
                                         {NamedArray{"w", {2}, ConstBufferOf(values)}});

  EXPECT_THAT(path, StatusIs(kInvalid, HasSubstr("optimizer.safetensors")));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

// Makes `path` look as if nothing had been written into it for `hours`.
void Age(const std::string& path, int hours) {
  const struct timespec times[2] = {{time(nullptr) - hours * 3600, 0},
                                    {time(nullptr) - hours * 3600, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(WriteWholeCheckpoint, RemovesWhatAKilledWriterLeftADayAgo) {
  const MemoryDirectory directory;
  for (const char* name :
       {".step_00000003.00000000000000aa", ".step_00000003.00000000000000bb", ".cache"}) {
    fs::create_directory(directory.File(name));
    WriteFile(directory.File(std::string(name) + "/model.safetensors"), "half");
  }
  Age(directory.File(".step_00000003.00000000000000aa"), 25);
  Age(directory.File(".cache"), 25);

  ASSERT_THAT(Save(directory.path(), 4), IsOk());

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

TEST(WriteWholeCheckpoint, RemovesAtOnceWhatAWriterLeftThatWasKilledOnThisMachine) {
  const MemoryDirectory directory;
  const std::string killed = ".step_00000003." + NameOfEndedWriter() + ".00000000000000aa";
  const std::string alive = ".step_00000003." + WriterName() + ".00000000000000bb";
  const std::string elsewhere = ".step_00000003.0123abcd-4026531836-1-7.00000000000000cc";
  for (const std::string& name : {killed, alive, elsewhere}) {
    fs::create_directory(directory.File(name));
    WriteFile(directory.File(name + "/model.safetensors"), "half");
  }

  ASSERT_THAT(Save(directory.path(), 4), IsOk());

  EXPECT_FALSE(FileExists(directory.File(killed)));
  EXPECT_TRUE(FileExists(directory.File(alive)));
  EXPECT_TRUE(FileExists(directory.File(elsewhere)));
}

TEST(WriteWholeCheckpoint, KeepsTheOnlyCopyOfAStepThatAKilledWriterPutAside) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 3, 3.0f), IsOk());
  const std::string aside = directory.File(".step_00000003.replaced.00000000000000aa");
  fs::rename(directory.File("step_00000003"), aside);
  Age(aside, 25);

  ASSERT_THAT(Save(directory.path(), 4), IsOk());
  EXPECT_TRUE(FileExists(aside));

  ASSERT_THAT(Save(directory.path(), 3), IsOk());
  EXPECT_FALSE(FileExists(aside));
}

TEST(OpenNewestCheckpoint, TakesTheHighestStepByNumber) {
  const MemoryDirectory directory;
  for (int64_t step : {99'999'999, 100'000'000, 5})
    ASSERT_THAT(Save(directory.path(), step), IsOk());

  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_100000000")));
}

TEST(OpenNewestCheckpoint, TakesTheDirectoryItselfIfItIsOne) {
  const MemoryDirectory directory;
  const auto path = Save(directory.path(), 5);
  ASSERT_THAT(path, IsOk());

  EXPECT_THAT(NewestIn(*path), IsOkAndHolds(*path));
}

TEST(OpenNewestCheckpoint, PassesOverWhatIsNotComplete) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  fs::remove(directory.File("step_00000006/optimizer.safetensors"));
  fs::create_directory(directory.File("step_00000007"));
  for (const char* name :
       {"step_", "step_9x", "step_99999999999999999999", ".step_00000009.ab", "step_-9"}) {
    fs::copy(directory.File("step_00000005"), directory.File(name));
  }

  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000005")));
}

TEST(OpenNewestCheckpoint, SaysWhatIsWrongWithNewerOnes) {
  const MemoryDirectory directory;
  for (const int64_t step : {3, 5, 6, 7}) ASSERT_THAT(Save(directory.path(), step), IsOk());
  fs::remove(directory.File("step_00000003/training.json"));  // older than the one that is taken
  FlipLastByte(directory.File("step_00000006/optimizer.safetensors"));
  fs::remove(directory.File("step_00000007/training.json"));
  fs::remove(directory.File("step_00000007/model.safetensors"));

  const auto newest = OpenNewestCheckpoint(directory.path());

  ASSERT_THAT(newest, IsOk());
  EXPECT_EQ(newest->path, directory.File("step_00000005"));
  EXPECT_EQ(newest->checkpoint.state.step, 5);
  EXPECT_THAT(newest->passed_over,
              ElementsAre(directory.File("step_00000007") +
                              " is incomplete: it lacks training.json and model.safetensors",
                          HasSubstr(directory.File("step_00000006/optimizer.safetensors") +
                                    " is damaged: \"second_moment.w\" has other bytes")));
}

TEST(OpenNewestCheckpoint, RefusesADamagedOneThatWasNamedItself) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  FlipLastByte(directory.File("step_00000006/model.safetensors"));
  EXPECT_THAT(NewestIn(directory.File("step_00000006")),
              StatusIs(kInvalid, AllOf(HasSubstr("is damaged"), HasSubstr("another checkpoint"))));
  fs::remove(directory.File("step_00000006/model.safetensors"));
  EXPECT_THAT(NewestIn(directory.File("step_00000006")),
              StatusIs(kInvalid, HasSubstr("is incomplete: it lacks model.safetensors")));
}

TEST(OpenNewestCheckpoint, NamesEachWhereNoneIsWhole) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  FlipLastByte(directory.File("step_00000005/model.safetensors"));
  FlipLastByte(directory.File("step_00000006/model.safetensors"));
  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("step_00000006"), HasSubstr("step_00000005"))));
}

// The caller's fault, or an older program's: no reason to go back in the training.
TEST(OpenNewestCheckpoint, PassesOverNothingThatDoesNotFitOrThatANewerProgramHasWritten) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  const auto another_model = [](const WholeCheckpoint&, const std::string& path) {
    return absl::InvalidArgumentError(path + " is of another model");
  };
  EXPECT_THAT(OpenNewestCheckpoint(directory.path(), nullptr, another_model),
              StatusIs(kInvalid, directory.File("step_00000006") + " is of another model"));
  WriteFile(directory.File("step_00000006/training.json"),
            R"({"format":"muster.whole_checkpoint","version":2})");
  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("use a newer Muster")));
}

TEST(OpenNewestCheckpoint, FallsBackToOneThatAKilledWriterPutAside) {
  const MemoryDirectory directory;
  const std::string aside = directory.File(".step_00000006.replaced.00000000000000aa");
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  fs::rename(directory.File("step_00000006"), aside);
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(aside));

  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000006")));
}

TEST(OpenNewestCheckpoint, SaysWhatItLookedFor) {
  const MemoryDirectory directory;

  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(kNotFound, AllOf(HasSubstr(directory.path()), HasSubstr("training.json"),
                                        HasSubstr("step_<number>"))));
  EXPECT_THAT(NewestIn(directory.File("none")), StatusIs(kNotFound, HasSubstr("none")));
}

// A training that may begin where there is no checkpoint yet must not begin over one that is
// broken.
TEST(OpenNewestCheckpoint, DoesNotTakeWhatIsIncompleteForNothing) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 6), IsOk());
  fs::remove(directory.File("step_00000006/optimizer.safetensors"));
  EXPECT_THAT(NewestIn(directory.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("step_00000006"), HasSubstr("lacks"))));
}

TEST(OpenNewestCheckpoint, DoesNotTakeADirectoryOfOtherFilesForAnEmptyOne) {
  const MemoryDirectory directory;
  WriteFile(directory.File("notes.txt"), "mine");
  EXPECT_THAT(NewestIn(directory.path()), StatusIs(kInvalid, HasSubstr("notes.txt")));
}

TEST(OpenNewestCheckpoint, TakesWhatAKilledWriterLeftForNothing) {
  const MemoryDirectory directory;
  fs::create_directory(directory.File(".step_00000006.00000000000000aa"));
  EXPECT_THAT(NewestIn(directory.path()), StatusIs(kNotFound, HasSubstr("there is no")));
}

TEST(OpenWholeCheckpoint, NamesTheFileThatIsDamaged) {
  const MemoryDirectory directory;
  for (const char* name : {"training.json", "model.safetensors", "optimizer.safetensors"}) {
    const auto path = Save(directory.path(), 5);
    ASSERT_THAT(path, IsOk());
    const std::string file = *path + "/" + name;
    const std::string bytes = ReadFile(file);
    WriteFile(file, bytes.substr(0, bytes.size() / 2));

    EXPECT_THAT(OpenWholeCheckpoint(*path), StatusIs(kInvalid, HasSubstr(file)));
  }
}

TEST(OpenWholeCheckpoint, RefusesFilesOfDifferentSteps) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 5), IsOk());
  const auto path = Save(directory.path(), 6);
  ASSERT_THAT(path, IsOk());
  fs::copy(directory.File("step_00000005/optimizer.safetensors"), *path + "/optimizer.safetensors",
           fs::copy_options::overwrite_existing);

  EXPECT_THAT(
      OpenWholeCheckpoint(*path),
      StatusIs(
          kInvalid,
          HasSubstr("optimizer.safetensors is of step 5, but training.json beside it of step 6")));
}

TEST(OpenWholeCheckpoint, SaysThatThereIsNone) {
  EXPECT_THAT(OpenWholeCheckpoint("/nowhere"), StatusIs(kNotFound, HasSubstr("/nowhere")));
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

  EXPECT_EQ(ValueIn(directory.File("step_00000005")), 2.0f);
  EXPECT_EQ(FilesBelow(directory.path()).size(), 3u);
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

TEST(ParseTrainingState, ReadsWhatFormatTrainingStateWrites) {
  const TrainingState state = {
      12, {{"kind", "ddp"}}, {{"caller's \"key\"", "line\nbreak"}}, {{"scale", "2"}}};
  const auto text = FormatTrainingState(state);
  ASSERT_THAT(text, IsOk());

  const auto read = ParseTrainingState(*text);

  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->step, 12);
  EXPECT_EQ(read->plan, state.plan);
  EXPECT_EQ(read->counters, state.counters);
  EXPECT_EQ(read->metadata, state.metadata);
}

std::string TrainingText(const std::string& version, const std::string& rest) {
  return R"({"format":"muster.whole_checkpoint","version":)" + version + "," + rest + "}";
}

TEST(ParseTrainingState, FindsEveryFlippedByte) {
  const std::string text = *FormatTrainingState({.step = 7,
                                                 .plan = {{"seed", "1"}},
                                                 .metadata = {{"data", "a text"}},
                                                 .counters = {{"skipped_steps", "0"}},
                                                 .model_sha256 = {{"w", "12ab"}}});
  ASSERT_THAT(ParseTrainingState(text), IsOk());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] ^= 1;
    if (std::isspace(text[i]) && std::isspace(flipped[i])) continue;
    EXPECT_THAT(ParseTrainingState(flipped), StatusIs(kInvalid)) << "byte " << i << ": " << flipped;
  }
}

TEST(CheckWholeCheckpoint, NamesTheArrayThatHasOtherBytesThanWereWritten) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  EXPECT_THAT(CheckWholeCheckpoint(*OpenWholeCheckpoint(path), nullptr), IsOk());
  const std::string file = path + "/optimizer.safetensors";
  FlipLastByte(file);
  EXPECT_THAT(CheckWholeCheckpoint(*OpenWholeCheckpoint(path), nullptr),
              StatusIs(kInvalid, AllOf(HasSubstr(file), HasSubstr("\"second_moment.w\""))));
}

// Checkpoints from before there were checksums have none.
TEST(CheckWholeCheckpoint, PassesACheckpointThatHasNoChecksums) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  WriteFile(path + "/training.json", *FormatTrainingState({.step = 3}));
  EXPECT_THAT(CheckWholeCheckpoint(*OpenWholeCheckpoint(path), nullptr), IsOk());
}

TEST(ParseTrainingState, AsksForANewerProgramForANewerFormat) {
  EXPECT_THAT(ParseTrainingState(TrainingText("2", R"("something":"new")")),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("version 2"), HasSubstr("use a newer Muster"))));
}

TEST(ParseTrainingState, RefusesWhatIsNotItsOwn) {
  const std::string maps = R"("plan":{},"metadata":{})";
  EXPECT_THAT(ParseTrainingState(""), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(ParseTrainingState("[1]"), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(ParseTrainingState("{}"), StatusIs(kInvalid, HasSubstr("muster.whole_checkpoint")));
  EXPECT_THAT(ParseTrainingState(TrainingText("\"1\"", maps)), StatusIs(kInvalid));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", maps)), StatusIs(kInvalid, HasSubstr("step")));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", maps + R"(,"step":-1)")),
              StatusIs(kInvalid, HasSubstr("step")));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", maps + R"(,"step":18446744073709551615)")),
              StatusIs(kInvalid));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", maps + R"(,"step":1,"step":2)")),
              StatusIs(kInvalid, HasSubstr("twice")));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", R"("step":1,"plan":{})")),
              StatusIs(kInvalid, HasSubstr("\"metadata\"")));
  EXPECT_THAT(ParseTrainingState(TrainingText("1", R"("step":1,"plan":{"k":1},"metadata":{})")),
              StatusIs(kInvalid, HasSubstr("\"k\" in \"plan\" is not a string")));
  EXPECT_THAT(ParseTrainingState(std::string(1 << 20, '[')), StatusIs(kInvalid));
}

}  // namespace
}  // namespace muster::checkpoint

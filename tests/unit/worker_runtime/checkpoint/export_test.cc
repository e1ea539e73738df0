#include "worker_runtime/checkpoint/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "proto/io/read_file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/whole_checkpoint_files.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

// Two digests and a part of a third.
constexpr int64_t kLarge = 2 * kDigestBlockBytes / 4 + 1234;

class Export : public ::testing::Test {
 protected:
  // A checkpoint of so many ranks, which have cut every array.
  void Save(const WholeArrays& arrays, int ranks, JobRound writer = {}) {
    const TrainingState state = {
        .step = 6, .plan = {{"kind", "zero-3"}}, .metadata = {{"k", "v"}}, .written_by = writer};
    const auto saved =
        SaveByRanks(directory_.File("saved"),
                    {.state = state, .arrays = arrays, .slices = EvenSlices(arrays, ranks)});
    ASSERT_THAT(saved, IsOkAndHolds(from_));
  }

  WholeArrays SmallState() {
    return {RandomBits("a.weight", DType::kF32, {3, 5}, random_),
            RandomBits("b", DType::kBf16, {7}, random_),
            RandomBits("first_moment.a.weight", DType::kF32, {15}, random_),
            RandomBits("first_moment.b", DType::kF32, {7}, random_)};
  }

  absl::Status ExportTo(const std::string& place) const {
    const auto opened = Checkpoint::Open(from_);
    EXPECT_THAT(opened, IsOk());
    return ExportWhole(*opened, place);
  }

  // The file at `path` has the arrays whole, and no others.
  static void ExpectHas(const std::string& path, const WholeArrays& arrays, bool is_of_model) {
    const auto file = SafetensorsFile::Open(path);
    ASSERT_THAT(file, IsOk());
    size_t num_arrays = 0;
    for (const auto& [array, expected] : arrays) {
      if (array.is_of_model != is_of_model) continue;
      ++num_arrays;
      ASSERT_EQ(file->arrays().count(array.name), 1u) << array.name;
      EXPECT_EQ(file->arrays().at(array.name).shape, array.shape);
      std::string bytes(expected.size(), '\0');
      const int64_t count = static_cast<int64_t>(bytes.size() / SizeOf(array.dtype));
      ASSERT_THAT(file->Read(array.name, {bytes.data(), count, array.dtype}), IsOk());
      EXPECT_TRUE(bytes == expected) << array.name;
    }
    EXPECT_THAT(file->arrays(), SizeIs(num_arrays));
  }

  std::mt19937 random_{20260101};
  const MemoryDirectory directory_;
  const std::string from_ = directory_.File("saved/step_00000006");
  const std::string place_ = directory_.File("out");
};

TEST_F(Export, HasEveryArrayWholeInFilesOfTheirNames) {
  const WholeArrays arrays = SmallState();
  Save(arrays, 4);
  ASSERT_THAT(ExportTo(place_), IsOk());
  EXPECT_THAT(FilesBelow(place_), ElementsAre("digests.sha256", "model.safetensors",
                                              "optimizer.safetensors", "training.json"));
  ExpectHas(place_ + "/model.safetensors", arrays, true);
  ExpectHas(place_ + "/optimizer.safetensors", arrays, false);
}

TEST_F(Export, JoinsPiecesOfSeveralDigestsThatBeginAnywhere) {
  const WholeArrays arrays = {RandomBits("w", DType::kF32, {2, kLarge / 2}, random_),
                              RandomBits("first_moment.w", DType::kF32, {kLarge}, random_)};
  Save(arrays, 3);
  ASSERT_THAT(ExportTo(place_), IsOk());
  ExpectHas(place_ + "/model.safetensors", arrays, true);
  ExpectHas(place_ + "/optimizer.safetensors", arrays, false);
}

TEST_F(Export, IsACheckpointOfTheSameState) {
  Save(SmallState(), 2);
  ASSERT_THAT(ExportTo(place_), IsOk());
  const auto from = Checkpoint::Open(from_);
  const auto exported = Checkpoint::Open(place_);
  ASSERT_THAT(from, IsOk());
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->state().step, 6);
  EXPECT_EQ(exported->state().plan, from->state().plan);
  EXPECT_EQ(exported->state().metadata, from->state().metadata);
  EXPECT_EQ(exported->state().model_id, from->state().model_id);
  EXPECT_THAT(exported->CheckFiles(), IsOk());
  EXPECT_THAT(ReadAll(*exported), IsOk());
  for (const SlicedArrays* arrays :
       {&exported->manifest().model, &exported->manifest().optimizer}) {
    for (const auto& [name, array] : *arrays) EXPECT_THAT(array.pieces, SizeIs(1)) << name;
  }
}

TEST_F(Export, TakesACheckpointOfBeforeThereWereSlices) {
  const std::vector<float> values = {1, 2, 3};
  const std::string old = muster::testing::WriteWholeCheckpoint(
      directory_.File("old"), {.state = {.step = 4},
                               .model = {{"w", {3}, ConstBufferOf(values)}},
                               .optimizer = {{"first_moment.w", {3}, ConstBufferOf(values)}}});
  const auto opened = Checkpoint::Open(old);
  ASSERT_THAT(opened, IsOk());
  ASSERT_THAT(ExportWhole(*opened, place_), IsOk());
  const auto exported = Checkpoint::Open(place_);
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->state().step, 4);
  EXPECT_EQ(exported->state().model_id, opened->state().model_id);
  ExpectHas(place_ + "/model.safetensors", {Floats("w", {3}, values)}, true);
}

TEST_F(Export, ReplacesACheckpointAndEvenItsOwn) {
  const WholeArrays arrays = SmallState();
  Save(arrays, 2);
  fs::copy(from_, place_);
  WriteFile(place_ + "/slices_00007.safetensors", "of another");
  ASSERT_THAT(ExportTo(place_), IsOk());
  ExpectHas(place_ + "/model.safetensors", arrays, true);
  EXPECT_THAT(FilesBelow(place_), SizeIs(4)) << "no slices";
  ASSERT_THAT(ExportTo(from_), IsOk());
  ExpectHas(from_ + "/model.safetensors", arrays, true);
  EXPECT_THAT(FilesBelow(from_), SizeIs(4)) << "no slices";
}

// No job publishes it, so that the rounds of jobs do not matter.
TEST_F(Export, ReplacesWhatALaterRoundHasWritten) {
  Save(SmallState(), 1, {.instance = 7, .round = 5});
  fs::rename(from_, place_);
  Save(SmallState(), 2, {.instance = 7, .round = 2});
  EXPECT_THAT(ExportTo(place_), IsOk());
}

TEST_F(Export, LeavesAPlaceAloneThatIsNoCheckpoint) {
  Save(SmallState(), 2);
  fs::create_directory(place_);
  WriteFile(place_ + "/thesis.tex", "text");
  EXPECT_THAT(ExportTo(place_), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr(place_), HasSubstr("not a checkpoint"))));
  EXPECT_THAT(FilesBelow(place_), ElementsAre("thesis.tex"));
}

TEST_F(Export, LeavesAnExportAloneThatSomeonesOwnFilesLieBeside) {
  Save(SmallState(), 2);
  ASSERT_THAT(ExportTo(place_), IsOk());
  WriteFile(place_ + "/config.json", "{}");
  EXPECT_THAT(ExportTo(place_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("config.json")));
  EXPECT_THAT(FilesBelow(place_), SizeIs(5));
}

TEST_F(Export, OfADamagedOneLeavesNothingAndNamesTheFile) {
  Save(SmallState(), 2);
  FlipLastByte(from_ + "/slices_00001.safetensors");
  const std::vector<std::string> before = FilesBelow(directory_.path());
  EXPECT_THAT(ExportTo(place_), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("slices_00001.safetensors is damaged")));
  EXPECT_FALSE(fs::exists(place_));
  EXPECT_EQ(FilesBelow(directory_.path()), before);
}

TEST_F(Export, OfADamagedOneLeavesTheCheckpointThatWasThere) {
  Save(SmallState(), 2);
  fs::copy(from_, place_);
  fs::resize_file(from_ + "/slices_00000.safetensors", 20);
  const std::vector<std::string> before = FilesBelow(directory_.path());
  EXPECT_THAT(ExportTo(place_), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(FilesBelow(directory_.path()), before);
  EXPECT_THAT(Checkpoint::Open(place_), IsOk());
}

TEST_F(Export, RemovesWhatIsLeftOfOneThatWasKilled) {
  Save(SmallState(), 2);
  const std::string place = directory_.File("of.two");
  const pid_t child = fork();
  if (child == 0) {
    const auto opened = Checkpoint::Open(from_);
    (void)ExportWhole(*opened, place, [] { raise(SIGKILL); });
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  fs::create_directory(directory_.File(".one.of.a.user"));
  EXPECT_THAT(NamesIn(directory_.path()), SizeIs(3)) << "saved, the user's, and what is left";
  ASSERT_THAT(ExportTo(place_), IsOk());
  EXPECT_THAT(NamesIn(directory_.path()), UnorderedElementsAre(".one.of.a.user", "out", "saved"));
}

TEST_F(Export, TakesArraysWithoutAnElement) {
  const WholeArrays arrays = {Floats("none", {0, 4}, {}), Floats("some", {2}, {1, 2})};
  Save(arrays, 1);
  ASSERT_THAT(ExportTo(place_), IsOk());
  ExpectHas(place_ + "/model.safetensors", arrays, true);
  EXPECT_THAT(Checkpoint::Open(place_), IsOk());
}

TEST_F(Export, TellsOfItsProgressAtEveryBlock) {
  Save({RandomBits("w", DType::kF32, {kLarge}, random_)}, 2);
  int64_t told = 0;
  const auto opened = Checkpoint::Open(from_);
  ASSERT_THAT(opened, IsOk());
  EXPECT_THAT(ExportWhole(*opened, place_, [&] { ++told; }), IsOk());
  EXPECT_GE(told, 3);
}

}  // namespace
}  // namespace muster::checkpoint

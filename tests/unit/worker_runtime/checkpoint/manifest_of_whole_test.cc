// Checkpoints that programs of before there were slices wrote: read like any other.
#include "worker_runtime/checkpoint/manifest_of_whole.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/whole_checkpoint_files.h"
#include "tests/unit/worker_runtime/checkpoint/manifest_texts.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/checkpoint.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::WholeCheckpointFiles;
using ::muster::testing::WriteFile;
using ::muster::testing::WriteWholeCheckpoint;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Parameters "b" and "w" and the moments of the latter, all of value `value`, with an empty array.
class WholeState {
 public:
  explicit WholeState(float value) : values_(6, value) {}

  std::string Write(const std::string& directory, int64_t step, bool has_checksums = true) const {
    return WriteWholeCheckpoint(
        directory, {.state = {.step = step,
                              .plan = {{"kind", "ddp"}},
                              .metadata = {{"value", std::to_string(values_[0])}},
                              .counters = {{"scale", "2"}},
                              .written_by = {.instance = 7, .round = 1},
                              .model_id = ""},
                    .model = {NamedArray{"b", {6}, ConstBufferOf(values_)},
                              NamedArray{"none", {0, 3}, ConstBufferOf(none_)},
                              NamedArray{"w", {2, 3}, ConstBufferOf(values_)}},
                    .optimizer = {NamedArray{"first_moment.w", {2, 3}, ConstBufferOf(values_)},
                                  NamedArray{"second_moment.w", {2, 3}, ConstBufferOf(values_)}},
                    .has_checksums = has_checksums});
  }

 private:
  const std::vector<float> values_;
  const std::vector<float> none_;
};

TEST(WholeCheckpoint, IsReadInFull) {
  const MemoryDirectory directory;
  const std::string path = WholeState(2.5f).Write(directory.path(), 100);

  const auto checkpoint = Checkpoint::Open(path);

  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(checkpoint->CheckFiles(), IsOk());
  EXPECT_THAT(ReadAll(*checkpoint), IsOk());
  EXPECT_EQ(checkpoint->state().step, 100);
  EXPECT_THAT(checkpoint->state().plan, ElementsAre(std::pair("kind", "ddp")));
  EXPECT_THAT(checkpoint->state().metadata, ElementsAre(std::pair("value", "2.500000")));
  EXPECT_THAT(checkpoint->state().counters, ElementsAre(std::pair("scale", "2")));
  EXPECT_EQ(checkpoint->state().written_by, (JobRound{.instance = 7, .round = 1}));
  EXPECT_THAT(checkpoint->state().model_id, MatchesRegex("[0-9a-f]{64}"));
  EXPECT_THAT(checkpoint->manifest().model, SizeIs(3));
  EXPECT_THAT(checkpoint->manifest().optimizer, SizeIs(2));
  EXPECT_THAT(checkpoint->manifest().model.at("w").shape, ElementsAre(2, 3));
  EXPECT_THAT(ValueIn(*checkpoint), IsOkAndHolds(2.5f));
}

TEST(WholeCheckpoint, HasOnePieceForEachArrayAndADigestForEachPiece) {
  const MemoryDirectory directory;
  const auto checkpoint = Checkpoint::Open(WholeState(1.0f).Write(directory.path(), 1));
  ASSERT_THAT(checkpoint, IsOk());
  const Manifest& manifest = checkpoint->manifest();
  EXPECT_THAT(manifest.files, SizeIs(2));
  EXPECT_EQ(manifest.files[0].name, "model.safetensors");
  EXPECT_EQ(manifest.NumDigests(), 4);
  EXPECT_THAT(manifest.model.at("w").pieces, SizeIs(1));
  EXPECT_THAT(manifest.optimizer.at("second_moment.w").pieces, SizeIs(1));
  EXPECT_EQ(manifest.model.at("none").num_elements(), 0);
}

TEST(WholeCheckpoint, IsReadInAnyRange) {
  const MemoryDirectory directory;
  std::vector<float> values(kDigestBlockBytes / 4 * 2 + 77);
  std::iota(values.begin(), values.end(), 1.0f);
  const std::vector<float> moment(values.rbegin(), values.rend());
  const int64_t count = static_cast<int64_t>(values.size());
  const std::string path = WriteWholeCheckpoint(
      directory.path(),
      {.state = {.step = 1},
       .model = {NamedArray{"w", {count}, ConstBufferOf(values)}},
       .optimizer = {NamedArray{"first_moment.w", {count}, ConstBufferOf(moment)}}});
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  const int64_t block = kDigestBlockBytes / 4;
  for (const auto& [first, end] : std::vector<std::pair<int64_t, int64_t>>{{0, count},
                                                                           {0, 0},
                                                                           {5, 6},
                                                                           {block - 1, block + 1},
                                                                           {count - 1, count},
                                                                           {block, 2 * block}}) {
    const auto read = ReadRange(*checkpoint, checkpoint->manifest().model, "w", first, end - first);
    ASSERT_THAT(read, IsOk());
    EXPECT_TRUE(*read ==
                absl::string_view(reinterpret_cast<const char*>(&values[0] + first), read->size()))
        << first << ":" << end;
  }
  const auto last =
      ReadRange(*checkpoint, checkpoint->manifest().optimizer, "first_moment.w", count - 1, 1);
  ASSERT_THAT(last, IsOk());
  EXPECT_TRUE(*last == absl::string_view(reinterpret_cast<const char*>(&values[0]), 4));
}

TEST(WholeCheckpoint, IsFoundBesideSlicedOnes) {
  const MemoryDirectory directory;
  WholeState(1.0f).Write(directory.path(), 5);
  ASSERT_THAT(Save(directory.path(), 6, 2.0f), IsOk());
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000006")));
  WholeState(3.0f).Write(directory.path(), 7);
  EXPECT_THAT(NewestIn(directory.path()), IsOkAndHolds(directory.File("step_00000007")));
  EXPECT_THAT(NewestIn(directory.File("step_00000005")),
              IsOkAndHolds(directory.File("step_00000005")));
}

TEST(WholeCheckpoint, IsReplacedByASlicedOneOfItsStep) {
  const MemoryDirectory directory;
  WholeState(1.0f).Write(directory.path(), 5);
  ASSERT_THAT(Save(directory.path(), 5, 2.0f), IsOk());
  EXPECT_THAT(ValueIn(directory.File("step_00000005")), IsOkAndHolds(2.0f));
  EXPECT_FALSE(testing::FileExists(directory.File("step_00000005/model.safetensors")));
}

TEST(WholeCheckpoint, IsNotReplacedWhereALaterRoundHasWrittenIt) {
  const MemoryDirectory directory;
  const std::string path = WholeState(1.0f).Write(directory.path(), 5);
  SavedState saved = StateOf(5, 2.0f);
  saved.state.written_by = {.instance = 7, .round = 0};
  EXPECT_THAT(SaveByRanks(directory.path(), saved),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("round 1")));
  EXPECT_THAT(ValueIn(path), IsOkAndHolds(1.0f));
}

TEST(WholeCheckpoint, NamesTheArrayThatHasOtherBytesThanWereWritten) {
  const MemoryDirectory directory;
  const std::string path = WholeState(1.0f).Write(directory.path(), 3);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  const SlicedArrays& model = checkpoint->manifest().model;
  FlipByte(PlaceOf(*checkpoint, model.at("w"), 5));

  const auto damaged = StatusIs(kInvalid, AllOf(HasSubstr(path + "/model.safetensors is damaged"),
                                                HasSubstr("\"w\" has other bytes")));
  EXPECT_THAT(ReadWhole(*checkpoint, model, "b"), IsOk());
  EXPECT_THAT(ReadWhole(*checkpoint, checkpoint->manifest().optimizer, "first_moment.w"), IsOk());
  EXPECT_THAT(ReadRange(*checkpoint, model, "w", 0, 1), damaged);
  EXPECT_THAT(ReadWhole(*checkpoint, model, "w"), damaged);
  EXPECT_THAT(ReadAll(*checkpoint), damaged);
}

TEST(WholeCheckpoint, PassesWithoutChecksumsWhateverItsArraysHold) {
  const MemoryDirectory directory;
  const std::string path = WholeState(1.0f).Write(directory.path(), 3, /*has_checksums=*/false);
  FlipLastByte(path + "/model.safetensors");
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_EQ(checkpoint->manifest().NumDigests(), 0);
  EXPECT_THAT(ReadAll(*checkpoint), IsOk());
  EXPECT_THAT(ReadRange(*checkpoint, checkpoint->manifest().model, "w", 5, 1),
              IsOkAndHolds(std::string("\0\0\x80\xbf", 4)));
}

TEST(WholeCheckpoint, NamesTheFileThatIsCutOffOrMissing) {
  for (const char* name : {"training.json", "model.safetensors", "optimizer.safetensors"}) {
    const MemoryDirectory directory;
    const std::string path = WholeState(1.0f).Write(directory.path(), 5);
    const std::string file = path + "/" + name;
    const std::string bytes = ReadFile(file);
    WriteFile(file, bytes.substr(0, bytes.size() / 2));
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file)));
    fs::remove(file);
    EXPECT_THAT(Checkpoint::Open(path),
                StatusIs(kInvalid, HasSubstr(path + " is incomplete: it lacks " + name)));
  }
}

TEST(WholeCheckpoint, NamesAllFilesThatItLacks) {
  const MemoryDirectory directory;
  const std::string path = WholeState(1.0f).Write(directory.path(), 5);
  fs::remove(path + "/model.safetensors");
  fs::remove(path + "/optimizer.safetensors");
  EXPECT_THAT(
      NewestIn(directory.path()),
      StatusIs(kInvalid,
               HasSubstr("is incomplete: it lacks model.safetensors and optimizer.safetensors")));
}

TEST(WholeCheckpoint, RefusesFilesOfDifferentSteps) {
  const MemoryDirectory directory;
  const std::string older = WholeState(1.0f).Write(directory.path(), 5);
  const std::string path = WholeState(2.0f).Write(directory.path(), 6);
  fs::copy(older + "/optimizer.safetensors", path + "/optimizer.safetensors",
           fs::copy_options::overwrite_existing);
  EXPECT_THAT(
      Checkpoint::Open(path),
      StatusIs(kInvalid, HasSubstr(path + "/optimizer.safetensors is of step 5, but training.json "
                                          "beside it of step 6")));
}

TEST(WholeCheckpoint, FindsEveryFlippedByteOfTheTrainingText) {
  const MemoryDirectory directory;
  const std::string path = WholeState(1.0f).Write(directory.path(), 5);
  const std::string file = path + "/training.json";
  const std::string text = ReadFile(file);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    WriteFile(file, flipped);
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file)))
        << "byte " << i << ": " << flipped;
  }
}

// A text of training.json with a valid checksum, of which `change` has changed something.
class ChangedText : public ::testing::Test {
 protected:
  ChangedText() : path_(WholeState(1.0f).Write(directory_.path(), 5)) {}

  absl::Status OpenWith(const std::string& pointer, const Json& value) {
    const std::string file = path_ + "/training.json";
    const std::string text = ReadFile(file);
    Json json = Json::parse(text);
    json[Json::json_pointer(pointer)] = value;
    WriteFile(file, WithChecksum(json));
    const absl::Status status = Checkpoint::Open(path_).status();
    WriteFile(file, text);
    return status;
  }

  const MemoryDirectory directory_;
  const std::string path_;
};

TEST_F(ChangedText, IsRefusedWhereItNamesAnArrayThatIsNotThere) {
  EXPECT_THAT(OpenWith("/model_sha256/v", std::string(64, 'a')),
              StatusIs(kInvalid, AllOf(HasSubstr(path_ + "/model.safetensors"),
                                       HasSubstr("it lacks \"v\""))));
}

TEST_F(ChangedText, IsRefusedWhereAChecksumIsNone) {
  for (const char* checksum : {"", "12ab", "not of hex digits"}) {
    EXPECT_THAT(OpenWith("/model_sha256/w", checksum),
                StatusIs(kInvalid, AllOf(HasSubstr(path_ + "/training.json"), HasSubstr("\"w\""))));
  }
  EXPECT_THAT(OpenWith("/model_sha256", Json::object({{"w", std::string(64, 'a')}})),
              StatusIs(kInvalid, HasSubstr("\"b\"")));
}

TEST_F(ChangedText, IsRefusedInASentenceThatNamesTheFile) {
  const std::string file = path_ + "/training.json";
  EXPECT_THAT(OpenWith("/step", -1), StatusIs(kInvalid, HasSubstr(file + " is damaged: \"step\"")));
  EXPECT_THAT(OpenWith("/plan", 1), StatusIs(kInvalid, HasSubstr(file + " is damaged: it has no")));
  EXPECT_THAT(OpenWith("/metadata/k", 1),
              StatusIs(kInvalid, HasSubstr(file + " is damaged: \"k\"")));
  EXPECT_THAT(OpenWith("/version", "1"), StatusIs(kInvalid, HasSubstr(file)));
  EXPECT_THAT(OpenWith("/model_sha256", Json::array()), StatusIs(kInvalid, HasSubstr(file)));
}

}  // namespace
}  // namespace muster::checkpoint

// What a disk, a copy or a person does to the files of a checkpoint: found, and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/checkpoint.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr char kSecondFile[] = "slices_00001.safetensors";

// "large" in two slices, by rank 0 up to the middle of what would be its second block, and a small
// array that rank 1 has whole.
SavedState TwoSlicesOfSeveralBlocks(std::mt19937& random) {
  constexpr int64_t kCut = kDigestBlockBytes / 4 * 5 / 4;
  constexpr int64_t kElements = kCut + kDigestBlockBytes / 4 * 2 + 10;
  SavedState saved;
  saved.state.step = 1;
  saved.arrays = {RandomBits("large", DType::kF32, {kElements}, random),
                  RandomBits("small", DType::kF32, {100}, random)};
  saved.slices = {{{0, 0, kCut}}, {{1, 0, 100}, {0, kCut, kElements - kCut}}};
  return saved;
}

TEST(FlippedByte, IsFoundByTheReadsOfItsBlockAndNoOther) {
  const MemoryDirectory directory;
  std::mt19937 random(7);
  const SavedState saved = TwoSlicesOfSeveralBlocks(random);
  const std::string path = *SaveByRanks(directory.path(), saved);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  const SlicedArrays& model = checkpoint->manifest().model;
  constexpr int64_t kBlock = kDigestBlockBytes / 4;  // in elements
  const int64_t cut = saved.slices[0][0].elements;
  const int64_t elements = saved.arrays[0].num_elements();
  // The first block of the second slice.
  FlipByte(PlaceOf(*checkpoint, model.at("large"), cut + 5));

  EXPECT_THAT(ReadRange(*checkpoint, model, "large", 0, cut), IsOk());
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", cut + kBlock, elements - cut - kBlock),
              IsOk());
  EXPECT_THAT(ReadRange(*checkpoint, model, "small", 0, 100), IsOk());
  const auto damaged = StatusIs(kInvalid, AllOf(HasSubstr(path + "/" + kSecondFile),
                                                HasSubstr("\"large\""), HasSubstr("damaged")));
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", cut + 5, 1), damaged);
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", cut + kBlock - 1, 2), damaged);
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", cut - 1, 2), damaged);
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", 0, elements), damaged);
  EXPECT_THAT(ReadRange(*checkpoint, model, "large", cut, 0), IsOk());
  EXPECT_THAT(ReadAll(*checkpoint), damaged);
  EXPECT_THAT(checkpoint->CheckFiles(), IsOk()) << "it has as many bytes as before";
}

TEST(FlippedByte, IsFoundAnywhereInAnyArray) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const auto whole = Checkpoint::Open(path);
  ASSERT_THAT(whole, IsOk());
  for (const SlicedArrays* arrays : {&whole->manifest().model, &whole->manifest().optimizer}) {
    for (const auto& [name, array] : *arrays) {
      for (int64_t element = 0; element < array.num_elements(); ++element) {
        PlaceOfByte place = PlaceOf(*whole, array, element);
        place.offset += element % 4;
        FlipByte(place);
        EXPECT_THAT(ReadAll(*Checkpoint::Open(path)),
                    StatusIs(kInvalid, AllOf(HasSubstr(place.path), HasSubstr("\"" + name + "\""),
                                             HasSubstr("has other bytes"))));
        FlipByte(place);
      }
    }
  }
  EXPECT_THAT(ReadAll(*whole), IsOk());
}

TEST(FlippedByte, IsFoundAnywhereInTheManifest) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/training.json";
  const std::string text = ReadFile(file);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    WriteFile(file, flipped);
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file + " is damaged")))
        << "byte " << i << ": " << flipped;
  }
}

TEST(FlippedByte, IsFoundAnywhereInTheDigests) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/digests.sha256";
  const std::string bytes = ReadFile(file);
  ASSERT_EQ(bytes.size(), 6u * kDigestBytes) << "three arrays of two slices";
  for (size_t i = 0; i < bytes.size(); ++i) {
    FlipByte({file, static_cast<int64_t>(i)});
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file))) << i;
    FlipByte({file, static_cast<int64_t>(i)});
  }
  EXPECT_THAT(Checkpoint::Open(path), IsOk());
}

TEST(Digests, AreNamedWhereTheyAreMissingShortenedOrTooMany) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/digests.sha256";
  const std::string bytes = ReadFile(file);
  for (const std::string& other :
       {std::string(), bytes.substr(0, 1), bytes.substr(kDigestBytes),
        bytes.substr(0, bytes.size() - 1), bytes + std::string(kDigestBytes, 'x'),
        std::string(10 << 20, 'x')}) {
    WriteFile(file, other);
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file))) << other.size();
  }
  fs::remove(file);
  EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr("digests.sha256")));
}

TEST(Manifest, IsNamedWhereItIsCutOff) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/training.json";
  const std::string text = ReadFile(file);
  for (const size_t size : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 2}) {
    WriteFile(file, text.substr(0, size));
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(file + " is damaged")));
  }
}

TEST(SliceFile, IsNamedWhereItIsMissingOrHasAnotherSize) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/" + kSecondFile;
  const std::string bytes = ReadFile(file);
  for (const std::string& other : {std::string(), bytes.substr(0, bytes.size() - 1), bytes + "x"}) {
    WriteFile(file, other);
    const auto checkpoint = Checkpoint::Open(path);
    ASSERT_THAT(checkpoint, IsOk());
    EXPECT_THAT(checkpoint->CheckFiles(), StatusIs(kInvalid, HasSubstr(kSecondFile)));
  }
  fs::remove(file);
  EXPECT_THAT(Checkpoint::Open(path)->CheckFiles(),
              StatusIs(kInvalid, AllOf(HasSubstr(path), HasSubstr(kSecondFile))));
}

TEST(SliceFile, IsNamedByAReadThatItIsTooShortFor) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/" + kSecondFile;
  ASSERT_EQ(truncate(file.c_str(), static_cast<off_t>(fs::file_size(file)) - 1), 0);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  const SlicedArrays& moments = checkpoint->manifest().optimizer;
  const auto is_cut_off = StatusIs(
      kInvalid, AllOf(HasSubstr(file), HasSubstr("\"second_moment.w\""), HasSubstr("cut off")));
  EXPECT_THAT(ReadWhole(*checkpoint, moments, "second_moment.w"), is_cut_off);
  EXPECT_THAT(ReadRange(*checkpoint, moments, "second_moment.w", 3, 1), is_cut_off)
      << "the block of its digest cannot be read";
  EXPECT_THAT(ReadRange(*checkpoint, moments, "second_moment.w", 0, 3), IsOk());
  EXPECT_THAT(ReadWhole(*checkpoint, moments, "first_moment.w"), IsOk());
}

TEST(SliceFile, IsNamedWhereItIsCutOffAfterAReadOfIt) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  ASSERT_THAT(ReadAll(*checkpoint), IsOk());
  const std::string file = path + "/" + kSecondFile;
  ASSERT_EQ(truncate(file.c_str(), 10), 0);
  EXPECT_THAT(ReadAll(*checkpoint), StatusIs(kInvalid, HasSubstr(file)));
}

TEST(SliceFile, MustBeARegularFile) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  const std::string file = path + "/" + kSecondFile;
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_THAT(checkpoint, IsOk());
  EXPECT_THAT(checkpoint->CheckFiles(), StatusIs(kInvalid, HasSubstr(kSecondFile)));
  EXPECT_FALSE(ReadAll(*checkpoint).ok()) << "a pipe has no writer to wait for";
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_THAT(Checkpoint::Open(path)->CheckFiles(), StatusIs(kInvalid, HasSubstr(kSecondFile)));
}

TEST(Manifest, MustBeARegularFile) {
  const MemoryDirectory directory;
  const std::string path = *Save(directory.path(), 3);
  for (const char* name : {"digests.sha256", "training.json"}) {
    const std::string file = path + "/" + name;
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(Checkpoint::Open(path), StatusIs(kInvalid, HasSubstr(name)));
    fs::remove(file);
    fs::create_directory(file);
    EXPECT_FALSE(Checkpoint::Open(path).ok());
  }
}

}  // namespace
}  // namespace muster::checkpoint

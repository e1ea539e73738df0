// Slices of arrays: written by a rank, told to another process, put together in a manifest.
#include "worker_runtime/checkpoint/slice_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "proto/io/sha256.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr auto kInternal = absl::StatusCode::kInternal;
constexpr char kFile[] = "slices_00000.safetensors";

absl::StatusOr<WrittenFile> Write(const MemoryDirectory& directory, const WholeArrays& arrays,
                                  const std::vector<Slice>& slices) {
  return WriteSlices(directory.path(), kFile, ToWrite(arrays), slices, BytesIn(arrays));
}

std::string DigestsOf(absl::string_view bytes) {
  std::string digests;
  for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(bytes.size(), kDigestBlockBytes))) {
    digests += absl::HexStringToBytes(Sha256().Add(bytes.substr(0, kDigestBlockBytes)).Finish());
  }
  return digests;
}

TEST(ShareOf, GivesEachElementToOneWriterAndToAllWritersAlikeMany) {
  const std::vector<Slice> all = {{0, 5, 7}, {1, 0, 1}, {3, 2, 0}, {2, 100, 12}};
  for (int num_writers = 1; num_writers <= 25; ++num_writers) {
    std::vector<std::vector<int>> times = {std::vector<int>(12), {0}, std::vector<int>(112), {}};
    for (int writer = 0; writer < num_writers; ++writer) {
      int64_t elements = 0;
      for (const Slice& slice : ShareOf(all, writer, num_writers)) {
        EXPECT_GT(slice.elements, 0);
        elements += slice.elements;
        for (int64_t i = 0; i < slice.elements; ++i) {
          ++times[slice.array].at(static_cast<size_t>(slice.first + i));
        }
      }
      EXPECT_THAT(elements,
                  ::testing::AnyOf(20 / num_writers, (20 + num_writers - 1) / num_writers));
    }
    for (const Slice& slice : all) {
      for (int64_t i = 0; i < slice.elements; ++i) {
        EXPECT_EQ(times[slice.array].at(static_cast<size_t>(slice.first + i)), 1);
      }
    }
    EXPECT_EQ(std::count(times[0].begin(), times[0].end(), 0), 5) << "before the slice";
  }
}

TEST(ShareOf, CountsElementsOfAnyNumber) {
  constexpr int64_t kHalf = std::numeric_limits<int64_t>::max() / 2;
  const std::vector<Slice> last = ShareOf({{{0, 0, kHalf}, {1, 0, kHalf}}}, 999, 1000);
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_EQ(last[0].array, 1u);
  EXPECT_EQ(last[0].first + last[0].elements, kHalf);
  EXPECT_EQ(last[0].elements, (2 * kHalf) / 1000);
}

TEST(WriteSlices, GivesAWholeArrayItsNameAndShape) {
  const MemoryDirectory directory;
  const WholeArrays arrays = {Floats("w", {2, 3}, {1, 2, 3, 4, 5, 6}), Floats("s", {}, {7})};

  ASSERT_THAT(Write(directory, arrays, {{0, 0, 6}, {1, 0, 1}}), IsOk());

  const auto file = SafetensorsFile::Open(directory.File(kFile));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->arrays(), SizeIs(2));
  EXPECT_THAT(file->arrays().at("w").shape, ElementsAre(2, 3));
  EXPECT_THAT(file->arrays().at("s").shape, IsEmpty());
  std::vector<float> values(6);
  ASSERT_THAT(file->Read("w", BufferOf(values)), IsOk());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(WriteSlices, GivesAPartItsRangeAndNoShape) {
  const MemoryDirectory directory;
  const WholeArrays arrays = {Floats("layers.0/w", {2, 3}, {1, 2, 3, 4, 5, 6})};

  ASSERT_THAT(Write(directory, arrays, {{0, 2, 3}, {0, 0, 1}}), IsOk());

  const auto file = SafetensorsFile::Open(directory.File(kFile));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->arrays(), SizeIs(2));
  ASSERT_THAT(file->arrays(), ::testing::Contains(::testing::Key("layers.0/w[2:5]")));
  EXPECT_THAT(file->arrays().at("layers.0/w[2:5]").shape, ElementsAre(3));
  std::vector<float> values(3);
  ASSERT_THAT(file->Read("layers.0/w[2:5]", BufferOf(values)), IsOk());
  EXPECT_THAT(values, ElementsAre(3, 4, 5));
  std::vector<float> first(1);
  ASSERT_THAT(file->Read("layers.0/w[0:1]", BufferOf(first)), IsOk());
  EXPECT_THAT(first, ElementsAre(1));
}

TEST(WriteSlices, TellsWhereEachLiesAndTheDigestOfEachBlock) {
  const MemoryDirectory directory;
  std::mt19937 random(1);
  const int64_t large = 2 * kDigestBlockBytes + 1000;
  const WholeArrays arrays = {RandomBits("bytes", DType::kU8, {large + 7}, random),
                              RandomBits("halves", DType::kBf16, {3, 5}, random),
                              RandomBits("doubles", DType::kF64, {2}, random)};
  const std::vector<Slice> slices = {{0, 7, large}, {1, 2, 9}, {2, 0, 2}};

  const auto written = Write(directory, arrays, slices);

  ASSERT_THAT(written, IsOk());
  EXPECT_EQ(written->name, kFile);
  const std::string file = ReadFile(directory.File(kFile));
  EXPECT_EQ(written->bytes, static_cast<int64_t>(file.size()));
  ASSERT_THAT(written->slices, SizeIs(3));
  std::string digests;
  std::vector<size_t> arrays_seen;
  for (const WrittenSlice& slice : written->slices) {
    arrays_seen.push_back(slice.slice.array);
    const absl::string_view expected =
        *BytesIn(arrays)(slice.slice.array, slice.slice.first, slice.slice.elements);
    EXPECT_EQ(absl::string_view(file).substr(static_cast<size_t>(slice.offset), expected.size()),
              expected);
    digests += DigestsOf(expected);
  }
  EXPECT_THAT(arrays_seen, ::testing::UnorderedElementsAre(0u, 1u, 2u));
  EXPECT_EQ(digests.size(), 5u * kDigestBytes);
  EXPECT_EQ(written->digests, digests);
}

TEST(WriteSlices, AsksForABlockAtATimeInTheOrderOfTheFile) {
  const MemoryDirectory directory;
  std::mt19937 random(2);
  const WholeArrays arrays = {
      RandomBits("halves", DType::kF16, {kDigestBlockBytes / 2 * 2 + 5}, random),
      RandomBits("doubles", DType::kF64, {kDigestBlockBytes / 8 + 3}, random)};
  std::string given;
  std::vector<int64_t> sizes;
  const SliceBytes bytes_of = [&](size_t array, int64_t first,
                                  int64_t count) -> absl::StatusOr<absl::string_view> {
    const auto bytes = BytesIn(arrays)(array, first, count);
    given.append(bytes->data(), bytes->size());
    sizes.push_back(static_cast<int64_t>(bytes->size()));
    return bytes;
  };
  int calls = 0;

  ASSERT_THAT(WriteSlices(directory.path(), kFile, ToWrite(arrays),
                          {{{0, 0, arrays[0].num_elements()}, {1, 0, arrays[1].num_elements()}}},
                          bytes_of, [&calls] { ++calls; }),
              IsOk());

  const std::string file = ReadFile(directory.File(kFile));
  EXPECT_TRUE(given == file.substr(file.size() - given.size()));
  EXPECT_EQ(given.size(), arrays[0].bytes.size() + arrays[1].bytes.size());
  EXPECT_THAT(sizes, Each(::testing::Le(kDigestBlockBytes)));
  EXPECT_GE(calls, static_cast<int>(sizes.size()));
}

TEST(WriteSlices, WritesAFileWithoutArraysForARankThatHasNothing) {
  const MemoryDirectory directory;
  const auto written = Write(directory, {Floats("w", {1}, {1})}, {});
  ASSERT_THAT(written, IsOk());
  EXPECT_THAT(written->slices, IsEmpty());
  EXPECT_THAT(written->digests, IsEmpty());
  const auto file = SafetensorsFile::Open(directory.File(kFile));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->arrays(), IsEmpty());
}

TEST(WriteSlices, LeavesNothingWhereTheBytesCannotBeHad) {
  const MemoryDirectory directory;
  const WholeArrays arrays = {Floats("w", {2}, {1, 2})};
  const SliceBytes no_bytes = [](size_t, int64_t, int64_t) -> absl::StatusOr<absl::string_view> {
    return absl::AbortedError("the device is lost");
  };
  EXPECT_THAT(WriteSlices(directory.path(), kFile, ToWrite(arrays), {{{0, 0, 2}}}, no_bytes),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the device is lost")));
  EXPECT_THAT(FilesBelow(directory.path()), IsEmpty());
}

TEST(WriteSlices, SaysWhichDirectoryIsMissing) {
  const WholeArrays arrays = {Floats("w", {2}, {1, 2})};
  EXPECT_THAT(
      WriteSlices("/nowhere/at/all", kFile, ToWrite(arrays), {{{0, 0, 2}}}, BytesIn(arrays)),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

TEST(WrittenFile, IsReadBackByAnotherProcess) {
  const MemoryDirectory directory;
  const WholeArrays arrays = {Floats("w", {2, 3}, {1, 2, 3, 4, 5, 6}), Floats("s", {}, {7})};
  const auto written = Write(directory, arrays, {{1, 0, 1}, {0, 2, 4}});
  ASSERT_THAT(written, IsOk());

  const auto read = WrittenFile::Decode(written->Encode());

  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->name, written->name);
  EXPECT_EQ(read->bytes, written->bytes);
  EXPECT_EQ(read->digests, written->digests);
  ASSERT_EQ(read->slices.size(), written->slices.size());
  for (size_t i = 0; i < read->slices.size(); ++i) {
    EXPECT_EQ(read->slices[i].slice.array, written->slices[i].slice.array);
    EXPECT_EQ(read->slices[i].slice.first, written->slices[i].slice.first);
    EXPECT_EQ(read->slices[i].slice.elements, written->slices[i].slice.elements);
    EXPECT_EQ(read->slices[i].offset, written->slices[i].offset);
  }
}

// A rank that has nothing to write tells of no file.
TEST(WrittenFile, MayHaveNoName) {
  const auto read = WrittenFile::Decode(WrittenFile().Encode());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->name, "");
  EXPECT_THAT(read->slices, IsEmpty());
}

TEST(WrittenFile, IsRefusedWhereItIsCutOff) {
  const MemoryDirectory directory;
  const WholeArrays arrays = {Floats("w", {2}, {1, 2})};
  const std::string text = Write(directory, arrays, {{0, 0, 2}})->Encode();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(WrittenFile::Decode(text.substr(0, size)).ok()) << size << " of " << text.size();
  }
}

// A file of which nothing was written, that has these slices side by side.
WrittenFile FileWith(const std::string& name, const std::vector<Slice>& slices) {
  WrittenFile file = {.name = name, .bytes = 100, .slices = {}, .digests = {}};
  for (const Slice& slice : slices) {
    file.slices.push_back({slice, file.bytes});
    file.bytes += slice.elements * 4;
    if (slice.elements > 0) {
      file.digests += std::string(kDigestBytes, static_cast<char>('a' + file.digests.size() / 32));
    }
  }
  return file;
}

const std::vector<ArrayToWrite>& OneOfModelAndOneMoment() {
  static const std::vector<ArrayToWrite> arrays = {{"first_moment.w", DType::kF32, {2, 3}, false},
                                                   {"w", DType::kF32, {2, 3}, true}};
  return arrays;
}

TEST(ManifestOf, PutsThePiecesInTheOrderOfTheElementsAndTheDigestsInThatOfTheArrays) {
  const std::vector<WrittenFile> files = {
      FileWith("slices_00000.safetensors", {{0, 0, 6}, {1, 4, 2}}),
      FileWith("slices_00001.safetensors", {{1, 0, 4}})};

  const auto manifest = ManifestOf({.step = 9}, OneOfModelAndOneMoment(), files);

  ASSERT_THAT(manifest, IsOk());
  EXPECT_EQ(manifest->state.step, 9);
  EXPECT_THAT(manifest->state.model_id, MatchesRegex("[0-9a-f]{64}"));
  EXPECT_EQ(manifest->block_bytes, kDigestBlockBytes);
  ASSERT_THAT(manifest->files, SizeIs(2));
  EXPECT_EQ(manifest->files[1].name, "slices_00001.safetensors");
  EXPECT_EQ(manifest->files[1].bytes, 116);
  const SlicedArray& w = manifest->model.at("w");
  EXPECT_EQ(w.num_elements(), 6);
  ASSERT_THAT(w.pieces, SizeIs(2));
  EXPECT_EQ(w.pieces[0].file, 1);
  EXPECT_EQ(w.pieces[0].offset, 100);
  EXPECT_EQ(w.pieces[0].elements, 4);
  EXPECT_EQ(w.pieces[0].first_digest, 0);
  EXPECT_EQ(w.pieces[1].file, 0);
  EXPECT_EQ(w.pieces[1].offset, 124);
  EXPECT_EQ(w.pieces[1].elements, 2);
  EXPECT_EQ(w.pieces[1].first_digest, 1);
  const SlicedArray& moment = manifest->optimizer.at("first_moment.w");
  ASSERT_THAT(moment.pieces, SizeIs(1));
  EXPECT_EQ(moment.pieces[0].first_digest, 2);
  const size_t size = kDigestBytes;
  EXPECT_EQ(manifest->digests,
            std::string(size, 'a') + std::string(size, 'b') + std::string(size, 'a'));
}

TEST(ManifestOf, KeepsTheIdOfAModelThatIsLaidOutAnewAndElseTellsModelsApart) {
  const auto id_of = [](const SavedState& saved) {
    const MemoryDirectory directory;
    return Checkpoint::Open(*SaveByRanks(directory.path(), saved))->state().model_id;
  };
  EXPECT_NE(id_of(StateOf(1, 1.0f)), id_of(StateOf(1, 2.0f)));
  SavedState named = StateOf(1, 1.0f);
  named.state.model_id = std::string(64, 'c');
  EXPECT_EQ(id_of(named), named.state.model_id);
}

TEST(ManifestOf, RefusesSlicesThatAreNotEachElementOnce) {
  const auto manifest_of = [](const std::vector<Slice>& first, const std::vector<Slice>& second) {
    return ManifestOf({.step = 1}, OneOfModelAndOneMoment(),
                      {{FileWith("slices_00000.safetensors", first),
                        FileWith("slices_00001.safetensors", second)}});
  };
  const Slice all = {0, 0, 6};
  ASSERT_THAT(manifest_of({all, {1, 0, 3}}, {{1, 3, 3}}), IsOk());
  EXPECT_THAT(manifest_of({all, {1, 0, 3}}, {}), StatusIs(kInternal, HasSubstr("w")));
  EXPECT_THAT(manifest_of({all, {1, 0, 3}}, {{1, 4, 2}}), StatusIs(kInternal, HasSubstr("w")));
  EXPECT_THAT(manifest_of({all, {1, 0, 3}}, {{1, 2, 4}}), StatusIs(kInternal, HasSubstr("w")));
  EXPECT_THAT(manifest_of({all, {1, 0, 6}}, {{1, 0, 6}}), StatusIs(kInternal, HasSubstr("w")));
  EXPECT_THAT(manifest_of({all, {1, 1, 5}}, {}), StatusIs(kInternal, HasSubstr("w")));
  EXPECT_THAT(manifest_of({all}, {}), StatusIs(kInternal, HasSubstr("w")));
}

// A rank of another version or plan, say.
TEST(ManifestOf, RefusesWhatDoesNotBelongToTheArrays) {
  const auto manifest_of = [](const WrittenFile& file) {
    return ManifestOf({.step = 1}, OneOfModelAndOneMoment(), {{file}});
  };
  const WrittenFile whole = FileWith(kFile, {{0, 0, 6}, {1, 0, 6}});
  ASSERT_THAT(manifest_of(whole), IsOk());
  EXPECT_THAT(manifest_of(FileWith(kFile, {{0, 0, 6}, {1, 0, 6}, {2, 0, 6}})),
              StatusIs(kInternal, HasSubstr(kFile)));
  for (const size_t digests : {size_t{0}, size_t{kDigestBytes}, whole.digests.size() - 1,
                               whole.digests.size() + kDigestBytes}) {
    WrittenFile other = whole;
    other.digests.resize(digests, 'x');
    EXPECT_THAT(manifest_of(other), StatusIs(kInternal, HasSubstr(kFile))) << digests;
  }
}

TEST(ManifestOf, NeedsNoSliceOfAnArrayWithoutElements) {
  const std::vector<ArrayToWrite> arrays = {{"none", DType::kF32, {0, 3}, true},
                                            {"w", DType::kF32, {2, 3}, true}};
  for (const std::vector<Slice>& slices :
       {std::vector<Slice>{{1, 0, 6}}, std::vector<Slice>{{0, 0, 0}, {1, 0, 6}}}) {
    const auto manifest = ManifestOf({.step = 1}, arrays, {{FileWith(kFile, slices)}});
    ASSERT_THAT(manifest, IsOk());
    EXPECT_EQ(manifest->model.at("none").num_elements(), 0);
    EXPECT_EQ(manifest->model.at("w").pieces[0].first_digest, 0);
    EXPECT_THAT(ParseManifest(*FormatManifest(*manifest)), IsOk());
  }
}

// A momentum encoder has weights of the names that the optimizer gives its moments.
TEST(WriteSlices, TellsAParameterFromAMomentOfTheSameName) {
  const MemoryDirectory directory;
  WholeArrays arrays = {Floats("momentum.w", {2}, {1, 2}), Floats("momentum.w", {2}, {3, 4})};
  arrays[1].array.is_of_model = false;
  const auto file = Write(directory, arrays, {{0, 0, 2}, {1, 0, 2}});
  ASSERT_THAT(file, IsOk());
  const auto manifest = ManifestOf({}, ToWrite(arrays), {*file});
  ASSERT_THAT(manifest, IsOk());
  EXPECT_NE(manifest->model.at("momentum.w").pieces[0].offset,
            manifest->optimizer.at("momentum.w").pieces[0].offset);
}

}  // namespace
}  // namespace muster::checkpoint

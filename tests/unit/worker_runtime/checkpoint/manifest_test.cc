// The text of training.json: what was written is read, and what lies is refused in a sentence.
#include "worker_runtime/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/mutation.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/manifest_texts.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Json = nlohmann::json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Manifest ManifestOfOneFile() {
  Manifest manifest;
  manifest.state = {.step = 12,
                    .plan = {{"kind", "ddp"}},
                    .metadata = {{"caller's \"key\"", "line\nbreak"}},
                    .counters = {{"scale", "2"}},
                    .written_by = {.instance = 7, .round = 3},
                    .model_id = std::string(64, 'c')};
  manifest.files = {{"slices_00000.safetensors", 300}};
  manifest.model["w"] = {DType::kBf16, {2, 3}, {{0, 100, 4, 0}, {0, 200, 2, 1}}};
  manifest.model["none"] = {DType::kF32, {0}, {}};
  manifest.optimizer["first_moment.w"] = {DType::kF32, {}, {{0, 250, 1, 2}}};
  manifest.digests = std::string(3 * kDigestBytes, 'd');
  return manifest;
}

TEST(ParseManifest, ReadsWhatFormatManifestWrites) {
  const Manifest manifest = ManifestOfOneFile();
  const auto text = FormatManifest(manifest);
  ASSERT_THAT(text, IsOk());

  const auto read = ParseManifest(*text);

  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->manifest.state.step, 12);
  EXPECT_EQ(read->manifest.state.plan, manifest.state.plan);
  EXPECT_EQ(read->manifest.state.metadata, manifest.state.metadata);
  EXPECT_EQ(read->manifest.state.counters, manifest.state.counters);
  EXPECT_EQ(read->manifest.state.written_by, manifest.state.written_by);
  EXPECT_EQ(read->manifest.state.model_id, manifest.state.model_id);
  EXPECT_EQ(read->num_digests, 3);
  EXPECT_EQ(read->digests_sha256, Sha256().Add(manifest.digests).Finish());
  ASSERT_THAT(read->manifest.files, SizeIs(1));
  EXPECT_EQ(read->manifest.files[0].name, "slices_00000.safetensors");
  EXPECT_EQ(read->manifest.files[0].bytes, 300);
  const SlicedArray& w = read->manifest.model.at("w");
  EXPECT_EQ(w.dtype, DType::kBf16);
  EXPECT_THAT(w.shape, ElementsAre(2, 3));
  ASSERT_THAT(w.pieces, SizeIs(2));
  EXPECT_EQ(w.pieces[1].offset, 200);
  EXPECT_EQ(w.pieces[1].elements, 2);
}

// The digests that are left out of the text are numbered again: pieces by the names of arrays.
// Programs of before there were parts would read them in a wrong order.
TEST(FormatManifest, IsOfANewerVersionWhereArraysLieInParts) {
  Manifest manifest = ManifestOfOneFile();
  EXPECT_THAT(*FormatManifest(manifest), HasSubstr("\"version\":2"));
  const StoredParts parts = {.cut = {.axis = 1, .sections = {3, 0}}, .count = 3};
  manifest.model["w"].parts = parts;
  const auto text = FormatManifest(manifest);
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, HasSubstr("\"version\":3"));
  const auto read = ParseManifest(*text);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->manifest.model.at("w").parts, parts);
  EXPECT_FALSE(read->manifest.model.at("none").parts.has_value());
}

TEST(ParseManifest, NumbersTheDigestsInTheOrderOfTheArrays) {
  const auto read = ParseManifest(*FormatManifest(ManifestOfOneFile()));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->manifest.model.at("w").pieces[0].first_digest, 0);
  EXPECT_EQ(read->manifest.model.at("w").pieces[1].first_digest, 1);
  EXPECT_EQ(read->manifest.optimizer.at("first_moment.w").pieces[0].first_digest, 2);
}

TEST(FormatManifest, WritesOneLineOfTheFormThatPeopleFindDescribed) {
  const auto text = FormatManifest(ManifestOfOneFile());
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->find('\n'), text->size() - 1);
  const Json json = Json::parse(*text);
  EXPECT_EQ(json.at("format"), "muster.checkpoint");
  EXPECT_EQ(json.at("version"), 2);
  EXPECT_EQ(json.at("model").at("w"),
            Json::parse(R"({"dtype":"BF16","shape":[2,3],"pieces":[[0,100,4],[0,200,2]]})"));
  EXPECT_EQ(json.at("written_by"), Json::parse(R"({"instance":"7","round":"3"})"));
  EXPECT_EQ(*text, WithChecksum(json));
}

TEST(FormatManifest, NamesNoWriterWithoutAnAgent) {
  Manifest manifest = ManifestOfOneFile();
  manifest.state.written_by = {};
  EXPECT_FALSE(Json::parse(*FormatManifest(manifest)).contains("written_by"));
}

TEST(FormatManifest, RefusesANegativeStepAndTextThatIsNotUtf8) {
  EXPECT_THAT(FormatManifest({.state = {.step = -1}}), StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(FormatManifest({.state = {.metadata = {{"k", "\xff"}}}}),
              StatusIs(kInvalid, HasSubstr("UTF-8")));
  EXPECT_THAT(FormatManifest({.state = {.plan = {{"\xff", ""}}}}),
              StatusIs(kInvalid, HasSubstr("UTF-8")));
}

TEST(NumBlocks, RoundsUp) {
  EXPECT_EQ(NumBlocks(0, 4), 0);
  EXPECT_EQ(NumBlocks(1, 4), 1);
  EXPECT_EQ(NumBlocks(4, 4), 1);
  EXPECT_EQ(NumBlocks(5, 4), 2);
  EXPECT_EQ(NumBlocks(kHuge, kHuge), 1);
  EXPECT_EQ(NumBlocks(kHuge, 2), kHuge / 2 + 1);
}

TEST(ParseManifest, FindsEveryFlippedBit) {
  const std::string text = *FormatManifest(ManifestOfOneFile());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(ParseManifest(flipped), StatusIs(kInvalid)) << "bit " << bit << ": " << flipped;
  }
}

TEST(ParseManifest, AsksForANewerProgramForANewerFormat) {
  Json json = {{"format", "muster.checkpoint"}, {"version", 4}, {"something", "new"}};
  EXPECT_THAT(ParseManifest(WithChecksum(json)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("version 4"), HasSubstr("use a newer Muster"))));
}

TEST(ParseManifest, RefusesWhatIsNotItsOwn) {
  EXPECT_THAT(ParseManifest(""), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(ParseManifest("[1]"), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(ParseManifest("{}"), StatusIs(kInvalid, HasSubstr("muster.checkpoint")));
  EXPECT_THAT(ParseManifest(std::string(1 << 20, '[')), StatusIs(kInvalid));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1 << 17; ++i) deep += "{\"a\":";
  EXPECT_THAT(ParseManifest(deep), StatusIs(kInvalid));
}

TEST(ParseManifest, RefusesAKeyThatIsThereTwice) {
  const std::string text = WithChecksum(ManifestOfTwoFiles());
  ASSERT_THAT(ParseManifest(text), IsOk());
  for (const std::string key : {"\"step\":", "\"w\":", "\"bytes\":", "\"dtype\":"}) {
    std::string twice = text;
    const size_t at = twice.find(key);
    ASSERT_NE(at, std::string::npos) << key;
    twice.insert(at, key + "1,");
    EXPECT_THAT(ParseManifest(twice), StatusIs(kInvalid, HasSubstr("twice"))) << twice;
  }
}

TEST(ParseManifest, RefusesAManifestWithoutItsOwnChecksum) {
  EXPECT_THAT(ParseManifest(ManifestOfTwoFiles().dump()),
              StatusIs(kInvalid, HasSubstr("checksum")));
}

// A manifest with a valid checksum that says at `pointer` something else; the message has `says`.
struct Lie {
  std::string pointer;
  Json value;
  std::string says;
};

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.pointer << " = " << lie.value; }

class LyingManifest : public ::testing::TestWithParam<Lie> {};

TEST_P(LyingManifest, IsRefusedInASentence) {
  Json json = ManifestOfTwoFiles();
  ASSERT_THAT(ParseManifest(WithChecksum(json)), IsOk());
  json[Json::json_pointer(GetParam().pointer)] = GetParam().value;
  EXPECT_THAT(ParseManifest(WithChecksum(json)), StatusIs(kInvalid, HasSubstr(GetParam().says)));
}

constexpr char kW[] = "/model/w/pieces/1";
constexpr char kName[] = "/files/1/name";
const auto kUnsignedMax = std::numeric_limits<uint64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    AboutPieces, LyingManifest,
    ::testing::Values(
        Lie{kW, {1, 593, 2}, "\"w\" it says a piece of 2 elements at byte 593 of slices_00001"},
        Lie{kW, {1, 600, 2}, "\"w\""}, Lie{kW, {1, 601, 2}, "\"w\""},
        Lie{kW, {1, kHuge, 2}, "\"w\""}, Lie{kW, {1, kHuge - 7, 2}, "\"w\""},
        Lie{kW, {1, kUnsignedMax, 2}, "\"w\""}, Lie{kW, {1, -8, 2}, "\"w\""},
        Lie{kW, {1, 100, -2}, "\"w\""}, Lie{kW, {1, 100, 0}, "\"w\""},
        Lie{kW, {1, 100, int64_t{1} << 62}, "\"w\""}, Lie{kW, {1, 100, kHuge}, "\"w\""},
        Lie{kW, {1, 100, 1}, "\"w\" it says that its pieces have 5 elements, and its shape 6"},
        Lie{kW, {1, 100, 3}, "\"w\""}, Lie{kW, {2, 100, 2}, "\"w\" it says a piece in file 2 of 2"},
        Lie{kW, {-1, 100, 2}, "\"w\""}, Lie{kW, {kHuge, 100, 2}, "\"w\""},
        Lie{kW, {1, 100}, "\"w\""}, Lie{kW, {1, 100, 2, 0}, "\"w\""},
        Lie{kW, {1, 100.5, 2}, "\"w\""}, Lie{kW, {1, "100", 2}, "\"w\""}, Lie{kW, 100, "\"w\""},
        Lie{kW, nullptr, "\"w\""}, Lie{"/model/w/pieces", Json::array(), "\"w\""},
        Lie{"/model/w/pieces", Json::object(), "\"w\""}));

INSTANTIATE_TEST_SUITE_P(
    AboutOverlaps, LyingManifest,
    ::testing::Values(
        // All of it, a part of it, and within one array.
        Lie{"/model/b/pieces/0", {1, 100, 5}, "\"b\" and \"w\" lie over one another"},
        Lie{"/model/b/pieces/0", {1, 98, 5}, "slices_00001.safetensors"},
        Lie{"/model/b/pieces/0", {1, 106, 5}, "slices_00001.safetensors"},
        Lie{"/optimizer/first_moment.w/pieces/0", {0, 222, 6}, "\"first_moment.w\""},
        Lie{"/optimizer/first_moment.w/pieces/0", {0, 180, 6}, "slices_00000.safetensors"},
        Lie{kW, {0, 208, 2}, "\"w\" and \"w\""}));

INSTANTIATE_TEST_SUITE_P(
    AboutArrays, LyingManifest,
    ::testing::Values(
        Lie{"/model/w/shape", {2, -3}, "\"w\""}, Lie{"/model/w/shape", {2, 4}, "\"w\""},
        Lie{"/model/w/shape", {int64_t{1} << 40, int64_t{1} << 40}, "\"w\""},
        Lie{"/model/w/shape", {kUnsignedMax}, "\"w\""}, Lie{"/model/w/shape", "6", "\"w\""},
        Lie{"/model/w/shape", Json(std::vector<int>(10'000, 1)), "\"w\""},
        Lie{"/model/w/dtype", "F8_E4M3", "\"w\""}, Lie{"/model/w/dtype", "f32", "\"w\""},
        Lie{"/model/w/dtype", 4, "\"w\""}, Lie{"/model/w/dtype", "F64", "\"w\""},
        Lie{"/model/w", Json::object(), "\"w\""}, Lie{"/model/w", 1, "\"w\""},
        Lie{"/model", Json::array(), "\"model\""}, Lie{"/optimizer", nullptr, "\"optimizer\""}));

constexpr char kParts[] = "/model/w/parts";
Json PartsOf(const Json& axis, const Json& sections, const Json& count) {
  return {{"axis", axis}, {"sections", sections}, {"count", count}};
}

INSTANTIATE_TEST_SUITE_P(
    AboutParts, LyingManifest,
    ::testing::Values(
        Lie{kParts, PartsOf(1, {3}, 2), "\"w\" it says parts that do not fit: its shape is [2, 3]"},
        Lie{kParts, PartsOf(2, {3}, 3), "no axis 2 to cut"},
        Lie{kParts, PartsOf(kHuge, {3}, 3), "\"w\""}, Lie{kParts, PartsOf(-1, {3}, 3), "\"axis\""},
        Lie{kParts, PartsOf(1, {3}, 1), "1 parts along axis 1"},
        Lie{kParts, PartsOf(1, {3}, 0), "\"w\""}, Lie{kParts, PartsOf(1, {3}, kHuge), "\"w\""},
        Lie{kParts, PartsOf(1, {3}, "3"), "\"count\""},
        Lie{kParts, PartsOf(1, Json::array(), 3), "without a list of sections"},
        Lie{kParts, PartsOf(1, 3, 3), "\"w\""}, Lie{kParts, PartsOf(1, {3, 3}, 3), "longer"},
        Lie{kParts, PartsOf(1, {0}, 3), "shorter"},
        Lie{kParts, PartsOf(1, {kHuge, kHuge}, 3), "longer"},
        Lie{kParts, PartsOf(1, {-3, 6}, 3), "\"w\""}, Lie{kParts, 2, "\"w\""},
        Lie{kParts, {{"axis", 1}, {"sections", {3}}}, "\"count\""}));

INSTANTIATE_TEST_SUITE_P(
    AboutFiles, LyingManifest,
    ::testing::Values(
        Lie{kName, "../slices_00001.safetensors", "names \"../slices_00001.safetensors\""},
        Lie{kName, "..", "names \"..\""}, Lie{kName, ".", "names \".\""},
        Lie{kName, "", "names \"\""}, Lie{kName, "/etc/passwd", "names \"/etc/passwd\""},
        Lie{kName, "a/b.safetensors", "names \"a/b.safetensors\""},
        Lie{kName, std::string("slices_00001.safetensors\0", 25), "names \"slices_00001"},
        Lie{kName, 1, "name"}, Lie{kName, "slices_00000.safetensors", "slices_00000.safetensors"},
        Lie{"/files/1/bytes", -1, "\"bytes\""}, Lie{"/files/1/bytes", "600", "\"bytes\""},
        Lie{"/files/1/bytes", 107, "\"w\""}, Lie{"/files/1", "slices_00001.safetensors", "file"},
        Lie{"/files", Json::object(), "\"files\""}, Lie{"/files", Json::array(), "file 0 of 0"}));

INSTANTIATE_TEST_SUITE_P(AboutDigests, LyingManifest,
                         ::testing::Values(Lie{"/digests/count", 3, "3 digests"},
                                           Lie{"/digests/count", 5, "5 digests"},
                                           Lie{"/digests/count", -4, "\"count\""},
                                           Lie{"/digests/count", kUnsignedMax, "\"count\""},
                                           Lie{"/digests/block_bytes", 0, "0 bytes"},
                                           Lie{"/digests/block_bytes", -1, "\"block_bytes\""},
                                           Lie{"/digests/block_bytes", 4, "4 digests"},
                                           Lie{"/digests/sha256", 1, "\"digests\""},
                                           Lie{"/digests", 1, "\"digests\""}));

INSTANTIATE_TEST_SUITE_P(
    AboutTheState, LyingManifest,
    ::testing::Values(Lie{"/step", -1, "\"step\""}, Lie{"/step", kUnsignedMax, "\"step\""},
                      Lie{"/step", "1", "\"step\""}, Lie{"/plan", Json::array(), "\"plan\""},
                      Lie{"/plan", {{"k", 1}}, "\"k\" in \"plan\" is not a string"},
                      Lie{"/metadata", nullptr, "\"metadata\""},
                      Lie{"/counters", 1, "\"counters\""},
                      Lie{"/written_by", {{"instance", "7"}}, "\"written_by\""},
                      Lie{"/written_by", {{"instance", "seven"}, {"round", "1"}}, "\"written_by\""},
                      Lie{"/model_id", 7, "\"model_id\""},
                      Lie{"/format", "muster.other", "muster.checkpoint"},
                      Lie{"/version", "2", "version"}, Lie{"/version", 2.5, "version"}));

TEST(ParseManifest, RefusesAManifestThatLacksAnyPart) {
  for (const char* key : {"format", "version", "step", "plan", "metadata", "model_id", "files",
                          "digests", "model", "optimizer"}) {
    Json json = ManifestOfTwoFiles();
    json.erase(key);
    EXPECT_THAT(ParseManifest(WithChecksum(json)), StatusIs(kInvalid, HasSubstr(key)));
  }
}

// The sum of all pieces is more than a number holds, though each file is one that a number counts.
TEST(ParseManifest, CountsNoDigestsBeyondWhatANumberHolds) {
  Json json = ManifestOfTwoFiles();
  json["optimizer"] = Json::object();
  json["model"] = Json::object();
  for (int i = 0; i < 3; ++i) {
    const std::string name = "w" + std::to_string(i);
    json["files"][i] = {{"name", name + ".safetensors"}, {"bytes", kHuge}};
    json["model"][name] = {{"dtype", "U8"},
                           {"shape", Json::array({kHuge - 8})},
                           {"pieces", Json::array({Json::array({i, 8, kHuge - 8})})}};
  }
  json["digests"]["block_bytes"] = 1;
  EXPECT_THAT(ParseManifest(WithChecksum(json)), StatusIs(kInvalid));
}

// What a parsed manifest promises to those who read by it.
void ExpectSound(const Manifest& manifest) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> places;  // file, begin, end
  for (const SlicedArrays* arrays : {&manifest.model, &manifest.optimizer}) {
    for (const auto& [name, array] : *arrays) {
      const int64_t size = static_cast<int64_t>(SizeOf(array.dtype));
      int64_t product = 1;
      for (const int64_t dimension : array.shape) product *= dimension;
      EXPECT_EQ(array.num_elements(), product) << name;
      for (const Piece& piece : array.pieces) {
        ASSERT_GE(piece.file, 0);
        ASSERT_LT(piece.file, static_cast<int64_t>(manifest.files.size()));
        EXPECT_GE(piece.offset, 0);
        EXPECT_GT(piece.elements, 0);
        places.emplace_back(piece.file, piece.offset, piece.offset + piece.elements * size);
        EXPECT_LE(std::get<2>(places.back()), manifest.files[piece.file].bytes);
      }
    }
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    const bool is_of_another_file = std::get<0>(places[i - 1]) != std::get<0>(places[i]);
    EXPECT_TRUE(is_of_another_file || std::get<2>(places[i - 1]) <= std::get<1>(places[i]));
  }
}

TEST(ParseManifest, IsSoundOrRefusedWhateverTheTextIs) {
  int sound = 0;
  testing::ForEachMutation(
      "tests/unit/worker_runtime/checkpoint/corpus/manifest", 5000, [&](const std::string& text) {
        EXPECT_FALSE(ParseManifest(text).ok()) << "it has no checksum";
        const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (!json.is_object()) return;
        const auto read = ParseManifest(WithChecksum(json));
        if (read.ok() && !read->is_of_whole) {
          ++sound;
          ExpectSound(read->manifest);
        } else if (!absl::IsUnimplemented(read.status())) {
          EXPECT_THAT(read, StatusIs(kInvalid));
        }
      });
  EXPECT_GT(sound, 20) << "the mutations are too wild to prove anything";
}

}  // namespace
}  // namespace muster::checkpoint

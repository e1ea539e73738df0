// What a header may say, and each way in which it may not.
#include "worker_runtime/checkpoint/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Parses the header of a file with `data_bytes` behind it.
absl::StatusOr<SafetensorsHeader> Parse(const std::string& text, int64_t data_bytes) {
  return ParseHeader(text, kLengthBytes + static_cast<int64_t>(text.size()) + data_bytes);
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                      R"(,"data_offsets":)", offsets, "}");
}

TEST(ParseHeader, GivesDTypeShapeAndPlaceInTheFile) {
  const std::string text = "{" + Entry("w", "BF16", "[2,3]", "[0,12]") + "}";

  const auto header = Parse(text, 12);

  ASSERT_THAT(header, IsOk());
  const ArrayInfo& info = header->arrays.at("w");
  EXPECT_EQ(info.dtype, DType::kBf16);
  EXPECT_THAT(info.shape, ElementsAre(2, 3));
  EXPECT_EQ(info.offset, 8 + static_cast<int64_t>(text.size()));
  EXPECT_EQ(info.bytes, 12);
}

TEST(ParseHeader, KnowsEveryDTypeOfThisLibrary) {
  const std::vector<std::pair<std::string, DType>> dtypes = {
      {"F64", DType::kF64}, {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"F16", DType::kF16},
      {"I64", DType::kI64}, {"I32", DType::kI32}, {"U8", DType::kU8}};
  for (const auto& [name, dtype] : dtypes) {
    const int64_t bytes = static_cast<int64_t>(SizeOf(dtype));

    const auto header =
        Parse("{" + Entry("x", name, "[1]", absl::StrCat("[0,", bytes, "]")) + "}", bytes);

    ASSERT_THAT(header, IsOk()) << name;
    EXPECT_EQ(header->arrays.at("x").dtype, dtype);
  }
}

TEST(ParseHeader, ReadsMetadata) {
  const auto header = Parse(R"({"__metadata__":{"who":"me","empty":""}})", 0);

  ASSERT_THAT(header, IsOk());
  EXPECT_THAT(header->metadata, ElementsAre(std::pair("empty", ""), std::pair("who", "me")));
}

TEST(ParseHeader, AllowsAFileWithoutArraysAndSpacesAtItsEnd) {
  EXPECT_THAT(Parse("{}    ", 0), IsOk());
}

TEST(ParseHeader, AllowsScalarsAndArraysWithoutElements) {
  const auto header = Parse(
      "{" + Entry("none", "F32", "[0,7]", "[0,0]") + "," + Entry("one", "F32", "[]", "[0,4]") + "}",
      4);

  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->arrays.at("none").bytes, 0);
  EXPECT_EQ(header->arrays.at("one").bytes, 4);
}

struct BadHeader {
  std::string title;
  std::string text;
  int64_t data_bytes;
  std::string says;
};

void PrintTo(const BadHeader& header, std::ostream* out) { *out << header.text.substr(0, 200); }

class ParseHeaderRefuses : public ::testing::TestWithParam<BadHeader> {};

TEST_P(ParseHeaderRefuses, AndSaysWhy) {
  EXPECT_THAT(Parse(GetParam().text, GetParam().data_bytes),
              StatusIs(kInvalid, HasSubstr(GetParam().says)));
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + Entry("w", dtype, shape, offsets) + "}";
}
std::string Two(const std::string& first_offsets, const std::string& second_offsets) {
  return "{" + Entry("a", "U8", "[4]", first_offsets) + "," +
         Entry("b", "U8", "[4]", second_offsets) + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Each, ParseHeaderRefuses,
    ::testing::Values(
        BadHeader{"NothingAtAll", "", 0, "does not begin with {"},
        BadHeader{"AList", "[]", 0, "does not begin with {"},
        BadHeader{"ALeadingSpace", " {}", 0, "does not begin with {"},
        BadHeader{"NoJson", R"({"a":nope})", 0, "is not JSON from byte 7 on"},
        BadHeader{"HalfAnObject", R"({"a":{"dtype")", 0, "is not JSON"},
        BadHeader{"SomethingAfterIt", "{}x", 0, "is not JSON"},
        BadHeader{"ZeroBytes", std::string("{\0\0}", 4), 0, "is not JSON"},
        BadHeader{"NamesThatAreNotUtf8", "{\"\xff\":{}}", 0, "is not JSON"},
        BadHeader{
            "AnArrayTwice",
            "{" + Entry("a", "U8", "[1]", "[0,1]") + "," + Entry("a", "U8", "[1]", "[1,2]") + "}",
            2, "the header has \"a\" twice"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
        BadHeader{"AKeyOfMetadataTwice", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\" twice"},
        BadHeader{"MetadataThatIsNoText", R"({"__metadata__":{"k":1}})", 0,
                  "a number where none may be"},
        BadHeader{"MetadataThatIsNoObject", R"({"__metadata__":"k"})", 0,
                  "a string where none may be"},
        BadHeader{"ADTypeTwice", R"({"w":{"dtype":"U8","dtype":"U8"}})", 0, "\"dtype\" twice"},
        BadHeader{"AShapeTwice", R"({"w":{"shape":[1],"shape":[1]}})", 0, "\"shape\" twice"},
        BadHeader{"OffsetsTwice", R"({"w":{"data_offsets":[0,1],"data_offsets":[0,1]}})", 0,
                  "twice"},
        BadHeader{"AnUnknownKey", R"({"w":{"stride":[1]}})", 0, "unknown key \"stride\""},
        BadHeader{"NoDType", R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1,
                  "\"w\" has no dtype"},
        BadHeader{"NoShape", R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1, "no shape"},
        BadHeader{"NoOffsets", R"({"w":{"dtype":"U8","shape":[1]}})", 1, "no data_offsets"},
        BadHeader{"AnUnknownDType", One("F8_E4M3", "[1]", "[0,1]"), 1, "\"F8_E4M3\""},
        BadHeader{"ADTypeThatIsNoText", R"({"w":{"dtype":8}})", 0, "a number where none may be"},
        BadHeader{"AShapeThatIsNoList", One("U8", "1", "[0,1]"), 1, "a number where none may be"},
        BadHeader{"AShapeOfLists", One("U8", "[[1]]", "[0,1]"), 1, "a list where none may be"},
        BadHeader{"ANegativeSize", One("U8", "[-1]", "[0,1]"), 1, "the number -1"},
        BadHeader{"AFraction", One("U8", "[1.0]", "[0,1]"), 1, "the number 1.0"},
        BadHeader{"ASizeOver63Bits", One("U8", "[9223372036854775808]", "[0,1]"), 1,
                  "9223372036854775808"},
        BadHeader{"ASizeOver64Bits", One("U8", "[99999999999999999999]", "[0,1]"), 1,
                  "99999999999999999999"},
        BadHeader{"AnOverflowOfTheShape", One("U8", "[4294967296,4294967296]", "[0,0]"), 0,
                  "impossible shape"},
        BadHeader{"AnOverflowOfTheBytes", One("F64", "[4611686018427387904]", "[0,0]"), 0,
                  "impossible shape"},
        BadHeader{"OneOffset", One("U8", "[1]", "[0]"), 1, "exactly two"},
        BadHeader{"ThreeOffsets", One("U8", "[1]", "[0,1,1]"), 1, "more than two"},
        BadHeader{"OffsetsTheWrongWayRound", One("U8", "[1]", "[1,0]"), 1, "takes 1 bytes"},
        BadHeader{"OffsetsOfAnotherSize", One("F32", "[2]", "[0,4]"), 4, "takes 8 bytes"},
        BadHeader{"OffsetsAtTheEndOfNumbers",
                  One("U8", "[1]", "[9223372036854775806,9223372036854775807]"), 1, "cut off"},
        BadHeader{"AFileThatIsCutOff", One("F32", "[2]", "[0,8]"), 7,
                  "which the file has 7: it is cut off"},
        BadHeader{"BytesAfterTheLastArray", One("F32", "[2]", "[0,8]"), 9,
                  "1 bytes after the last"},
        BadHeader{"BytesAfterNoArray", "{}", 3, "3 bytes after the last"},
        BadHeader{"AHole", Two("[0,4]", "[5,9]"), 9, "(a hole)"},
        BadHeader{"AHoleAtTheStart", One("U8", "[4]", "[4,8]"), 8, "(a hole)"},
        BadHeader{"AnOverlap", Two("[0,4]", "[3,7]"), 7, "(they overlap)"},
        BadHeader{"TwoArraysInOnePlace", Two("[0,4]", "[0,4]"), 4, "(they overlap)"}),
    [](const auto& info) { return info.param.title; });

TEST(ParseHeader, RefusesALargeDepthWithoutRecursion) {
  EXPECT_THAT(Parse("{\"a\":" + std::string(1 << 20, '['), 0), StatusIs(kInvalid));
}

TEST(ParseHeader, RefusesMoreThan64Dimensions) {
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";

  EXPECT_THAT(Parse(One("U8", shape + "]", "[0,1]"), 1),
              StatusIs(kInvalid, HasSubstr("64 dimensions")));
}

TEST(ParseHeader, ShowsNamesFitForATerminal) {
  const std::string text =
      "{" + Entry("\\u001b[2J" + std::string(500, 'x'), "?", "[]", "[0,0]") + "}";

  const auto header = Parse(text, 0);

  ASSERT_THAT(header, StatusIs(kInvalid, HasSubstr("\\x1b[2Jxxx")));
  EXPECT_THAT(std::string(header.status().message()), Not(HasSubstr(std::string(101, 'x'))));
}

TEST(PlanFile, PutsWideTypesFirstSoThatEveryArrayIsAligned) {
  const std::vector<uint8_t> bytes(3);
  const std::vector<double> doubles(2);
  const std::vector<float> floats(1);

  const auto layout = PlanFile({{{"b", {3}, ConstBufferOf(bytes)},
                                 {"f", {1}, ConstBufferOf(floats)},
                                 {"d", {2}, ConstBufferOf(doubles)}}},
                               {});

  ASSERT_THAT(layout, IsOk());
  EXPECT_THAT(layout->order, ElementsAre(2, 1, 0));
  EXPECT_EQ(layout->prefix.size() % 8, 0u);
}

TEST(PlanFile, PadsTheHeaderWithSpacesAndPutsItsLengthFirst) {
  const auto layout = PlanFile({}, {{"k", "v"}});

  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->prefix,
            std::string("\x20\0\0\0\0\0\0\0", 8) + R"({"__metadata__":{"k":"v"}})" + "      ");
}

TEST(PlanFile, QuotesWhatJsonQuotes) {
  const std::vector<uint8_t> byte(1);
  const std::string name = "a\"\\\n\xc3\xbc";
  const auto layout = PlanFile({{{name, {1}, ConstBufferOf(byte)}}}, {});
  ASSERT_THAT(layout, IsOk());

  const auto header = Parse(layout->prefix.substr(8), 1);

  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(header->arrays.count(name), 1u);
}

TEST(PlanFile, RefusesWhatTheFormatCannotSay) {
  const std::vector<float> two(2);
  const ConstBuffer elements = ConstBufferOf(two);

  EXPECT_THAT(PlanFile({{{"__metadata__", {2}, elements}}}, {}),
              StatusIs(kInvalid, HasSubstr("__metadata__")));
  EXPECT_THAT(PlanFile({{{"w", {2}, elements}, {"w", {2}, elements}}}, {}),
              StatusIs(kInvalid, HasSubstr("two arrays are named \"w\"")));
  EXPECT_THAT(PlanFile({{{"w", {3}, elements}}}, {}),
              StatusIs(kInvalid, HasSubstr("the shape [3] but 2 elements")));
  EXPECT_THAT(PlanFile({{{"w", {-1, -2}, elements}}}, {}), StatusIs(kInvalid));
  EXPECT_THAT(PlanFile({{{"\xff", {2}, elements}}}, {}), StatusIs(kInvalid, HasSubstr("UTF-8")));
  EXPECT_THAT(PlanFile({}, {{"k", "\xff"}}), StatusIs(kInvalid, HasSubstr("UTF-8")));
}

}  // namespace
}  // namespace muster::checkpoint

#include "agent/watch/python_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::agent {
namespace {

using ::testing::Eq;
using ::testing::Optional;

constexpr uint64_t kBase = 0x1000;
constexpr uint64_t kObject = kBase + 64;
constexpr uint32_t kCompact = 1 << 5, kAscii = 1 << 6;

uint32_t Width(uint32_t bytes) { return bytes << 2; }

// A memory of 512 bytes at kBase.
class PythonObjects : public ::testing::Test {
 protected:
  template <typename T>
  void Put(uint64_t address, T value) {
    std::memcpy(bytes_ + (address - kBase), &value, sizeof(value));
  }
  void PutBytes(uint64_t address, absl::string_view text) {
    std::memcpy(bytes_ + (address - kBase), text.data(), text.size());
  }
  // A string whose `characters` lie behind the header of its kind.
  void PutString(int64_t length, uint32_t kind, absl::string_view characters) {
    Put<int64_t>(kObject + kPythonLengthAt, length);
    Put<uint32_t>(kObject + kPythonStringKindAt, kind);
    PutBytes(kObject + ((kind & kAscii) != 0 ? strings_.ascii_bytes : strings_.other_bytes),
             characters);
  }

  bool Read(uint64_t address, void* into, size_t size) const {
    if (address < kBase || address - kBase + size > sizeof(bytes_)) return false;
    std::memcpy(into, bytes_ + (address - kBase), size);
    return true;
  }

  const PythonStrings strings_ = {.ascii_bytes = 40, .other_bytes = 56};
  char bytes_[512] = {};
  const std::function<bool(uint64_t, void*, size_t)> read_ =
      [this](uint64_t address, void* into, size_t size) { return Read(address, into, size); };
  const PythonMemory memory_{strings_, read_};
};

TEST_F(PythonObjects, GivesPointersAndNumbersWhereItCanBeRead) {
  Put<uint64_t>(kBase, kObject);
  Put<int32_t>(kBase + 8, -7);
  EXPECT_EQ(memory_.Pointer(kBase), kObject);
  EXPECT_THAT(memory_.Int(kBase + 8), Optional(-7));
  EXPECT_EQ(memory_.Pointer(kBase - 8), 0);
  EXPECT_EQ(memory_.Int(kBase + 510), std::nullopt);
}

TEST_F(PythonObjects, GivesAnAsciiStringFromBehindItsShorterHeader) {
  PutString(4, kCompact | kAscii | Width(1), "main");
  EXPECT_THAT(memory_.Text(kObject, 64), Optional(Eq("main")));
}

TEST_F(PythonObjects, GivesCharactersOfOneTwoAndFourBytesInUtf8) {
  PutString(2, kCompact | Width(1),
            "\xFC"
            "b");
  EXPECT_THAT(memory_.Text(kObject, 64), Optional(Eq("\xC3\xBC"
                                                     "b")));
  PutString(1, kCompact | Width(2), "\xAC\x20");
  EXPECT_THAT(memory_.Text(kObject, 64), Optional(Eq("\xE2\x82\xAC")));
  PutString(1, kCompact | Width(4), absl::string_view("\x0D\xF4\x01\x00", 4));
  EXPECT_THAT(memory_.Text(kObject, 64), Optional(Eq("\xF0\x9F\x90\x8D")));
}

TEST_F(PythonObjects, GivesTheBeginningOfALongString) {
  PutString(1'000'000'000, kCompact | kAscii | Width(1), "forward");
  EXPECT_THAT(memory_.Text(kObject, 3), Optional(Eq("for")));
}

TEST_F(PythonObjects, GivesNothingForWhatIsNoString) {
  PutString(-1, kCompact | kAscii | Width(1), "");
  EXPECT_EQ(memory_.Text(kObject, 64), std::nullopt);
  PutString(4, kAscii | Width(1), "main");  // its characters lie elsewhere
  EXPECT_EQ(memory_.Text(kObject, 64), std::nullopt);
  PutString(4, kCompact | kAscii | Width(3), "main");
  EXPECT_EQ(memory_.Text(kObject, 64), std::nullopt);
  PutString(4, kCompact | kAscii | Width(1), "a\nbc");
  EXPECT_EQ(memory_.Text(kObject, 64), std::nullopt);
  PutString(1, kCompact | Width(4), "\xFF\xFF\xFF\x7F");
  EXPECT_EQ(memory_.Text(kObject, 64), std::nullopt) << "behind the last code point";
  EXPECT_EQ(memory_.Text(0, 64), std::nullopt);
}

TEST_F(PythonObjects, GivesBytesThatAreAsLongAsExpectedAtMost) {
  Put<int64_t>(kObject + kPythonLengthAt, 3);
  PutBytes(kObject + kPythonBytesAt, absl::string_view("\x80\x00\xFF", 3));
  EXPECT_THAT(memory_.Bytes(kObject, 3), Optional(Eq(std::string("\x80\x00\xFF", 3))));
  EXPECT_EQ(memory_.Bytes(kObject, 2), std::nullopt);
  Put<int64_t>(kObject + kPythonLengthAt, 600);
  EXPECT_EQ(memory_.Bytes(kObject, 1000), std::nullopt) << "behind the end of the memory";
}

TEST_F(PythonObjects, KnowsCodeByTheNameOfItsType) {
  Put<uint64_t>(kObject + kPythonTypeAt, kBase + 128);
  Put<uint64_t>(kBase + 128 + kPythonTypeNameAt, kBase + 256);
  PutBytes(kBase + 256, "code");
  EXPECT_TRUE(memory_.IsCode(kObject));
  PutBytes(kBase + 256, "coder");
  EXPECT_FALSE(memory_.IsCode(kObject));
}

// Frames hold their code, and code its names and lines, as this layout has it.
TEST_F(PythonObjects, DescribeAFrameByItsCode) {
  const PythonLayout layout = {
      .frames = {.back = 0, .code = 8, .instruction = 16},
      .code = {.file = 64, .name = 72, .first_line = 80, .line_table = 88, .instructions = 96},
      .strings = strings_};
  const PythonFrameReader reader(memory_, layout);
  const uint64_t frame = kBase + 8, code = kBase + 256, type = kBase + 224;
  Put<uint64_t>(frame, kBase + 400);
  Put<uint64_t>(frame + 8, code + 1);  // a flag is in its lowest bit
  EXPECT_EQ(reader.Back(frame), kBase + 400);
  EXPECT_EQ(reader.Describe(frame), std::nullopt) << "of no type";
  Put<uint64_t>(code + kPythonTypeAt, type);
  Put<uint64_t>(type + kPythonTypeNameAt, kBase + 32);
  PutBytes(kBase + 32, "code");
  EXPECT_EQ(reader.Describe(frame), std::nullopt) << "without a name";
  PutString(4, kCompact | kAscii | Width(1), "main");
  Put<uint64_t>(code + 64, kObject);
  Put<uint64_t>(code + 72, kObject);
  Put<int32_t>(code + 80, 12);
  EXPECT_THAT(reader.Describe(frame), Optional(Eq("main at main:12")));
}

}  // namespace
}  // namespace muster::agent

// Files of arrays: written, read, damaged.
#include "worker_runtime/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::muster::testing::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// What safetensors 0.8.0 (Python) wrote for {"b": int32 [[1,2,3],[4,5,6]], "a": float32 [0.5,-2],
// "c\"ü": uint8 [7], "e": float64 of shape [0,3], "s": float64 3.25} and {"who": "safetensors"}.
std::string FileOfTheRealLibrary() {
  const std::string header = R"({"__metadata__":{"who":"safetensors"},)"
                             R"("e":{"dtype":"F64","shape":[0,3],"data_offsets":[0,0]},)"
                             R"("s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                             R"("b":{"dtype":"I32","shape":[2,3],"data_offsets":[16,40]},"c\")"
                             "\xc3\xbc"
                             R"(":{"dtype":"U8","shape":[1],"data_offsets":[40,41]}}      )";
  const char data[] =
      "\x00\x00\x00\x00\x00\x00\x0a\x40\x00\x00\x00\x3f\x00\x00\x00\xc0\x01\x00\x00\x00\x02\x00"
      "\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00\x06\x00\x00\x00\x07";
  return std::string("\x40\x01\0\0\0\0\0\0", 8) + header + std::string(data, sizeof(data) - 1);
}

template <typename T>
std::vector<T> ReadAll(const SafetensorsFile& file, const std::string& name, size_t count) {
  std::vector<T> values(count);
  EXPECT_THAT(file.Read(name, BufferOf(values)), IsOk());
  return values;
}

TEST(SafetensorsFile, ReadsWhatTheRealLibraryWrote) {
  const MemoryDirectory directory;
  const std::string path = directory.File("real.safetensors");
  WriteFile(path, FileOfTheRealLibrary());

  const auto file = SafetensorsFile::Open(path);

  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->metadata(), ElementsAre(std::pair("who", "safetensors")));
  EXPECT_EQ(file->arrays().size(), 5u);
  EXPECT_THAT(file->arrays().at("b").shape, ElementsAre(2, 3));
  EXPECT_THAT(ReadAll<int32_t>(*file, "b", 6), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(ReadAll<float>(*file, "a", 2), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(ReadAll<uint8_t>(*file, "c\"\xc3\xbc", 1), ElementsAre(7));
  EXPECT_THAT(ReadAll<double>(*file, "e", 0), IsEmpty());
  EXPECT_THAT(ReadAll<double>(*file, "s", 1), ElementsAre(3.25));
}

TEST(WriteSafetensors, WritesByteForByteWhatTheRealLibraryWrites) {
  const MemoryDirectory directory;
  const std::string path = directory.File("ours.safetensors");
  const std::vector<int32_t> b = {1, 2, 3, 4, 5, 6};
  const std::vector<float> a = {0.5f, -2.0f};
  const std::vector<uint8_t> c = {7};
  const std::vector<double> e;
  const std::vector<double> s = {3.25};

  ASSERT_THAT(WriteSafetensors(path,
                               {{{"e", {0, 3}, ConstBufferOf(e)},
                                 {"s", {}, ConstBufferOf(s)},
                                 {"a", {2}, ConstBufferOf(a)},
                                 {"b", {2, 3}, ConstBufferOf(b)},
                                 {"c\"\xc3\xbc", {1}, ConstBufferOf(c)}}},
                               {{"who", "safetensors"}}),
              IsOk());

  EXPECT_EQ(ReadFile(path), FileOfTheRealLibrary());
}

TEST(WriteSafetensors, KeepsTheBitsOfTypesThatCppHasNot) {
  const MemoryDirectory directory;
  const std::string path = directory.File("halves");
  const std::vector<uint16_t> halves = {0x0001, 0x7fc1, 0xffff};
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    ASSERT_THAT(WriteSafetensors(path, {{{"h", {3}, ConstBuffer(halves.data(), 3, dtype)}}}, {}),
                IsOk());
    const auto file = SafetensorsFile::Open(path);
    ASSERT_THAT(file, IsOk());
    std::vector<uint16_t> read(3);

    EXPECT_THAT(file->Read("h", {read.data(), 3, dtype}), IsOk());

    EXPECT_EQ(read, halves);
  }
}

TEST(WriteSafetensors, ReplacesAnEarlierFileAndLeavesNothingElse) {
  const MemoryDirectory directory;
  const std::string path = directory.File("x.safetensors");
  const std::vector<float> values = {1.0f};
  WriteFile(path, "something else");

  ASSERT_THAT(WriteSafetensors(path, {{{"v", {1}, ConstBufferOf(values)}}}, {}), IsOk());

  EXPECT_THAT(SafetensorsFile::Open(path), IsOk());
  EXPECT_THAT(FilesBelow(directory.path()), ElementsAre("x.safetensors"));
}

TEST(WriteSafetensors, SaysWhichDirectoryIsMissing) {
  EXPECT_THAT(WriteSafetensors("/nowhere/at/all.safetensors", {}, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all.safetensors")));
}

TEST(WriteSafetensors, RefusesToReplaceADevice) {
  EXPECT_THAT(WriteSafetensors("/dev/full", {}, {}),
              StatusIs(kInvalid, HasSubstr("/dev/full: it exists and is not a regular file")));
}

TEST(WriteSafetensors, RefusesToReplaceADirectory) {
  const MemoryDirectory directory;

  EXPECT_THAT(WriteSafetensors(directory.path(), {}, {}), StatusIs(kInvalid));
}

TEST(SafetensorsFile, SaysThatAFileIsMissing) {
  EXPECT_THAT(SafetensorsFile::Open("/nowhere/model.safetensors"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/model.safetensors")));
}

TEST(SafetensorsFile, RefusesDirectoriesAndDoesNotWaitForTheWriterOfAPipe) {
  const MemoryDirectory directory;
  const std::string pipe = directory.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);

  EXPECT_THAT(SafetensorsFile::Open(pipe), StatusIs(kInvalid, HasSubstr("not a regular file")));
  EXPECT_THAT(SafetensorsFile::Open(directory.path()),
              StatusIs(kInvalid, HasSubstr("not a regular file")));
}

TEST(SafetensorsFile, RefusesAHeaderLengthBeyondTheFileOr100Megabytes) {
  const MemoryDirectory directory;
  const std::string path = directory.File("x");
  WriteFile(path, std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  EXPECT_THAT(
      SafetensorsFile::Open(path),
      StatusIs(kInvalid, AllOf(HasSubstr(path),
                               HasSubstr("18446744073709551615 bytes, and 2 are possible"))));

  WriteFile(path, std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));  // 100,000,001
  ASSERT_EQ(truncate(path.c_str(), 200'000'000), 0);               // sparse
  EXPECT_THAT(SafetensorsFile::Open(path),
              StatusIs(kInvalid, HasSubstr("100000001 bytes, and 100000000")));
}

TEST(SafetensorsFile, RefusesAFileShorterThanItsLengthField) {
  const MemoryDirectory directory;
  const std::string path = directory.File("x");
  WriteFile(path, "");
  EXPECT_THAT(SafetensorsFile::Open(path), StatusIs(kInvalid, HasSubstr("0 bytes")));
  WriteFile(path, "1234567");
  EXPECT_THAT(SafetensorsFile::Open(path), StatusIs(kInvalid, HasSubstr("7 bytes")));
}

TEST(SafetensorsFile, ReadsNothingUnderAWrongNameTypeOrCount) {
  const MemoryDirectory directory;
  const std::string path = directory.File("real.safetensors");
  WriteFile(path, FileOfTheRealLibrary());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_THAT(file, IsOk());
  std::vector<float> floats(6);
  std::vector<int32_t> integers(5);

  EXPECT_THAT(file->Read("z", BufferOf(floats)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"z\"")));
  EXPECT_THAT(file->Read("b", BufferOf(floats)),
              StatusIs(kInvalid, HasSubstr("6 elements of i32, but 6 of f32")));
  EXPECT_THAT(file->Read("b", BufferOf(integers)),
              StatusIs(kInvalid, HasSubstr("6 elements of i32, but 5 of i32")));
}

TEST(SafetensorsFile, SaysThatItWasCutOffAfterItWasOpened) {
  const MemoryDirectory directory;
  const std::string path = directory.File("real.safetensors");
  const std::string bytes = FileOfTheRealLibrary();
  WriteFile(path, bytes);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes.size()) - 10), 0);
  std::vector<int32_t> values(6);

  EXPECT_THAT(file->Read("b", BufferOf(values)), StatusIs(kInvalid, HasSubstr("cut off")));
}

TEST(SafetensorsFile, MovesWithItsDescriptor) {
  const MemoryDirectory directory;
  const std::string path = directory.File("real.safetensors");
  WriteFile(path, FileOfTheRealLibrary());
  auto file = SafetensorsFile::Open(path);
  auto other = SafetensorsFile::Open(path);
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT(other, IsOk());

  *other = *std::move(file);
  const SafetensorsFile moved = *std::move(other);

  EXPECT_THAT(ReadAll<float>(moved, "a", 2), ElementsAre(0.5f, -2.0f));
}

// Whatever a file says is in it can be read: no offset may lead outside.
void ExpectReadable(const SafetensorsFile& file) {
  for (const auto& [name, info] : file.arrays()) {
    ASSERT_LE(info.bytes, 1000) << name;
    std::vector<char> bytes(static_cast<size_t>(info.bytes));
    const int64_t count = info.bytes / static_cast<int64_t>(SizeOf(info.dtype));
    EXPECT_THAT(file.Read(name, {bytes.data(), count, info.dtype}), IsOk());
  }
}

// A file without a name that has these bytes.
int DescriptorOf(const std::string& bytes) {
  const int fd = memfd_create("safetensors", MFD_CLOEXEC);
  MUSTER_CHECK(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return fd;
}

void ExpectOkOrInvalid(const std::string& bytes) {
  const auto file = SafetensorsFile::FromDescriptor(DescriptorOf(bytes), "the file");
  if (file.ok()) {
    ExpectReadable(*file);
  } else {
    EXPECT_THAT(file, StatusIs(kInvalid, HasSubstr("the file")));
  }
}

TEST(SafetensorsFile, RefusesEveryCutOfAValidFile) {
  const std::string whole = FileOfTheRealLibrary();
  for (size_t size = 0; size < whole.size(); ++size) {
    const int fd = DescriptorOf(whole.substr(0, size));
    EXPECT_THAT(SafetensorsFile::FromDescriptor(fd, "cut"), StatusIs(kInvalid)) << size;
  }
}

TEST(SafetensorsFile, SurvivesEverySingleFlippedBitOfAHeader) {
  const std::string whole = FileOfTheRealLibrary();
  const size_t header_end = whole.size() - 41;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ExpectOkOrInvalid(bytes);
  }
}

TEST(SafetensorsFile, SurvivesRandomEditsOfAHeader) {
  const std::string whole = FileOfTheRealLibrary();
  const std::string tokens[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "9",
                                "-",
                                "0",
                                "1e9",
                                "\\u00",
                                "[0",
                                "null",
                                "\"__metadata__\":",
                                "18446744073709551615"};
  std::mt19937 random(20240611);
  for (int round = 0; round < 4000; ++round) {
    std::string header = whole.substr(8, whole.size() - 41 - 8);
    for (uint32_t edit = 0; edit < 1 + random() % 4; ++edit) {
      const size_t at = random() % (header.size() + 1);
      header.replace(at, random() % 12,
                     random() % 2 == 0 ? tokens[random() % std::size(tokens)] : "");
    }
    // The length is the one that fits, so that the edit itself is judged.
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size() & 0xff);
    bytes[1] = static_cast<char>(header.size() >> 8);
    ExpectOkOrInvalid(bytes + header + whole.substr(whole.size() - 41));
  }
}

}  // namespace
}  // namespace muster::checkpoint

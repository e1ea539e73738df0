#include "agent/watch/python_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/strings/escaping.h"
#include "tests/support/status_matchers.h"

namespace muster::agent {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

// What code.co_linetable of one version holds, and code.co_lines() says of it: up to which offset
// which line counts.
struct Compiled {
  const char* version;
  PythonLines lines;
  int first_line;
  const char* table;
  std::vector<std::pair<int, int>> ends;
};

// A function of 18 lines with loops, a comprehension and calls over several lines, and a generator,
// by the compilers of 3.10.13 and 3.13.0.
const Compiled kCompiled[] = {
    {"3.10",
     PythonLines::kDeltas,
     2,
     "04020801080104010201020108fe0a040401060108ff1cff028002030601020108ff0c03020102ff",
     {{4, 4},    {12, 5},   {20, 6},   {24, 7},   {26, 8},   {28, 9},  {36, 7},
      {46, 11},  {50, 12},  {56, 13},  {64, 12},  {92, 11},  {94, 2},  {96, 14},
      {102, 15}, {104, 16}, {112, 15}, {124, 18}, {126, 19}, {128, 18}}},
    {"3.13",
     PythonLines::kLocations,
     2,
     "8000e00c0d8045db10158804d80b0f8b3cd80c119453d81014d81015f305021617f100020d178a45f408001216"
     "9064941a9874d810159c13d8141897499149934bf303011a21f1000111219005f70300121c911af10d001116f0"
     "1205050ee1191ef303021016d9191e9041dc1314f705001112d9191ef103021016f000020916f70900121c961a"
     "fcf208021016f8f406000c16f30001050ed8080df00301050efa",
     {{2, 2},    {6, 4},    {16, 5},   {26, 6},   {38, 7},   {40, 8},   {42, 9},   {60, 7},
      {84, 11},  {96, 12},  {126, 13}, {140, 12}, {160, 11}, {164, 5},  {166, 14}, {170, 16},
      {178, 15}, {184, 16}, {194, 17}, {210, 15}, {214, 16}, {220, 15}, {250, 11}, {260, 2},
      {266, 15}, {268, 2},  {286, 18}, {288, 19}, {290, 18}, {296, 2}}},
    {"3.13, of a generator",
     PythonLines::kLocations,
     22,
     "e9008000f10001151fdc151a98319458f30301151ff700010a1ff300010a1ff9",
     {{10, 22}, {32, 23}, {68, 22}}},
};

TEST(PythonLineAt, IsThatOfTheCompilerAtEachInstruction) {
  for (const Compiled& each : kCompiled) {
    const std::string table = absl::HexStringToBytes(each.table);
    int offset = 0;
    for (const auto& [end, line] : each.ends) {
      for (; offset < end; offset += 2) {
        EXPECT_EQ(PythonLineAt(table, each.lines, each.first_line, offset), line)
            << each.version << " at " << offset;
      }
    }
  }
}

TEST(PythonLineAt, IsTheFirstOfTheFunctionWhereTheTableDoesNotTell) {
  const std::string table = absl::HexStringToBytes(kCompiled[0].table);
  EXPECT_EQ(PythonLineAt(table, PythonLines::kDeltas, 2, -2), 2);    // it has begun nothing
  EXPECT_EQ(PythonLineAt(table, PythonLines::kDeltas, 2, 9000), 2);  // behind its end
  EXPECT_EQ(PythonLineAt("", PythonLines::kLocations, 7, 0), 7);
}

TEST(PythonLineAt, ReadsAnyBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string table(random() % 40, '\0');
    for (char& byte : table) byte = static_cast<char>(random());
    for (const PythonLines lines : {PythonLines::kDeltas, PythonLines::kLocations}) {
      PythonLineAt(table, lines, 1, random() % 100);
    }
  }
}

// The words with which 3.13 begins its _PyRuntime.
PythonOffsets OffsetsOf313() {
  PythonOffsets words(kPythonOffsetWords, 8);
  std::memcpy(words.data(), kPythonCookie.data(), kPythonCookie.size());
  words[1] = 0x030D00F0;
  words[2] = 0;
  for (const size_t size_at : {3, 6, 19, 28, 34}) words[size_at] = 9000;
  words[5] = 632;
  return words;
}

TEST(PythonLayouts, AreThoseThatThePythonItselfTells) {
  const auto layout = LayoutOfPython(0x030D00F0, OffsetsOf313());
  ASSERT_THAT(layout, IsOk());
  EXPECT_EQ(layout->threads.interpreters, 632);
}

TEST(PythonLayouts, AreNotGuessed) {
  PythonOffsets threaded = OffsetsOf313();
  threaded[2] = 1;
  PythonOffsets strange = OffsetsOf313();
  strange[5] = 9001;  // behind the end of what it lies in
  PythonOffsets other(kPythonOffsetWords, 0);
  EXPECT_THAT(LayoutOfPython(0x030D00F0, threaded),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("free-threaded Python 3.13")));
  EXPECT_THAT(LayoutOfPython(0x030D00F0, strange), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(LayoutOfPython(0x030D00F0, other), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(LayoutOfPython(0x030911F0, other),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Python 3.9")));
  EXPECT_THAT(LayoutOfPython(0x030F00F0, other), StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace muster::agent

#include "agent/console/worker_screen.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kWide = 1000;

int ColumnsWithoutStyles(std::string row) {
  for (size_t at; (at = row.find('\x1b')) != std::string::npos;)
    row.erase(at, row.find('m', at) - at + 1);
  return ColumnsOf(row);
}

std::vector<std::string> RowsAfter(const std::vector<std::string>& writes) {
  WorkerScreen screen;
  for (const std::string& bytes : writes) screen.Write(bytes);
  return screen.TakeAll();
}

TEST(WorkerScreen, FinishesARowAtItsNewline) {
  WorkerScreen screen;
  screen.Write("one\ntwo\nthr");
  EXPECT_THAT(screen.TakeSettled(), ElementsAre("one", "two"));
  EXPECT_THAT(screen.OpenRows(kWide), ElementsAre("thr"));
  screen.Write("ee\n");
  EXPECT_THAT(screen.TakeSettled(), ElementsAre("three"));
  EXPECT_THAT(screen.OpenRows(kWide), IsEmpty());
}

TEST(WorkerScreen, KeepsEmptyRows) {
  EXPECT_THAT(RowsAfter({"a\n\n\nb\n"}), ElementsAre("a", "", "", "b"));
}

TEST(WorkerScreen, OverwritesFromTheStartAfterACarriageReturn) {
  EXPECT_THAT(RowsAfter({"\r 10%|#   |", "\r 20%|##  |\r", "100"}), ElementsAre("100%|##  |"));
}

TEST(WorkerScreen, TakesACarriageReturnAndNewlineAsOneEnd) {
  EXPECT_THAT(RowsAfter({"a\r\nb\r", "\nc"}), ElementsAre("a", "b", "c"));
}

TEST(WorkerScreen, HidesARowThatWasBlanked) {
  WorkerScreen screen;
  screen.Write("\r 50%|##|\r         \r");
  EXPECT_THAT(screen.OpenRows(kWide), IsEmpty());
  EXPECT_THAT(screen.TakeAll(), IsEmpty());
}

// What tqdm writes for a bar at position 1, below another.
TEST(WorkerScreen, DrawsSeveralBarsThatMoveTheCursorUp) {
  WorkerScreen screen;
  screen.Write("\router 1/3");
  for (int i = 1; i <= 3; ++i) screen.Write(absl::StrCat("\n\rinner ", i, "/3\x1b[A"));
  EXPECT_FALSE(screen.has_settled());
  EXPECT_THAT(screen.OpenRows(kWide), ElementsAre("outer 1/3", "inner 3/3"));
  screen.Write("\router 2/3");
  EXPECT_THAT(screen.OpenRows(kWide), ElementsAre("outer 2/3", "inner 3/3"));
  screen.Write("\n\r          \r\x1b[A\n");
  EXPECT_THAT(screen.TakeAll(), ElementsAre("outer 2/3"));
}

// What rich writes: the cursor stays below the display and goes back over all of it.
TEST(WorkerScreen, KeepsTheRowsOfALiveDisplayOpen) {
  WorkerScreen screen;
  screen.Write("\x1b[?25louter 0%\ninner 0%");
  EXPECT_FALSE(screen.has_settled());
  screen.Write("\r\x1b[2K\x1b[1A\x1b[2Kepoch 1\nouter 50%\ninner 10%");
  EXPECT_THAT(screen.OpenRows(kWide), ElementsAre("epoch 1", "outer 50%", "inner 10%"));
  screen.Write("\r\x1b[2K\x1b[1A\x1b[2Kouter 99%\ninner 20%\n\x1b[?25h");
  EXPECT_THAT(screen.TakeSettled(), ElementsAre("epoch 1", "outer 99%"));
  EXPECT_THAT(screen.TakeAll(), ElementsAre("inner 20%"));
}

TEST(WorkerScreen, EditsWithinARowAsALineEditorDoes) {
  EXPECT_THAT(RowsAfter({"hallo\x1b[4D\x1b[Kello"}), ElementsAre("hello"));
  EXPECT_THAT(RowsAfter({"abcd\b\b\x1b[P"}), ElementsAre("abd"));
  EXPECT_THAT(RowsAfter({"abd\b\x1b[@c"}), ElementsAre("abcd"));
}

TEST(WorkerScreen, PutsASequenceTogetherThatWasCut) {
  EXPECT_THAT(RowsAfter({"old", "\r\x1b", "[", "2", "Knew"}), ElementsAre("new"));
  EXPECT_THAT(RowsAfter({"gr\xc3", "\xbc\xc3",
                         "\x9f"
                         "e"}),
              ElementsAre("grüße"));
}

TEST(WorkerScreen, KeepsBytesThatAreNotUtf8) {
  EXPECT_THAT(RowsAfter({"a\xff"
                         "b\xc3",
                         "(c"}),
              ElementsAre("a\xff"
                          "b\xc3"
                          "(c"));
}

TEST(WorkerScreen, LetsNoColourLeakOutOfARow) {
  EXPECT_THAT(RowsAfter({"\x1b[31mred\nstill\x1b[0m plain\n"}),
              ElementsAre("\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m plain"));
}

TEST(WorkerScreen, LeavesOutWhatAddressesTheWholeScreen) {
  EXPECT_THAT(RowsAfter({"\x1b[?25l\x1b[5;10Ha\x1b]0;title\a"
                         "b\x1b]8;;x\x1b\\c\x1b(B"}),
              ElementsAre("abc"));
}

// U+009B begins a sequence as "ESC [" does; ESC [ > 4 m is a mode of the keyboard, no colour.
TEST(WorkerScreen, LeavesOutOtherWaysToSteerATerminal) {
  EXPECT_THAT(RowsAfter({"a\xc2\x9b"
                         "2J\xc2",
                         "\x9d"
                         "b\x9b"
                         "c\xe2\x9b.\x7f"}),
              ElementsAre("a2Jbc."));
  EXPECT_THAT(RowsAfter({"\x1b[>4;2mx\x1b[31\a;1my\n"}), ElementsAre("xy"));
}

TEST(WorkerScreen, CutsARowToTheColumnsThereAre) {
  WorkerScreen screen;
  screen.Write("\r\x1b[32m50%|█████     |\x1b[0m");
  EXPECT_THAT(screen.OpenRows(6), ElementsAre("\x1b[32m50%|██\x1b[0m"));
  WorkerScreen wide;
  wide.Write("日本語");
  EXPECT_THAT(wide.OpenRows(5), ElementsAre("日本"));
  EXPECT_EQ(ColumnsOf("[日:1] "), 7);
}

TEST(WorkerScreen, TellsWhereTheCursorIs) {
  WorkerScreen screen;
  screen.Write("prompt> text");
  EXPECT_EQ(screen.CursorInLastRow(kWide), -1);
  screen.Write("\x1b[4D");
  EXPECT_EQ(screen.CursorInLastRow(kWide), 8);
}

TEST(WorkerScreen, FinishesTheOldestRowsOfAFlood) {
  WorkerScreen screen;
  for (size_t i = 0; i < 10 * WorkerScreen::kOpenRowsMax; ++i) screen.Write("x\n");
  EXPECT_THAT(screen.TakeSettled(), SizeIs(10 * WorkerScreen::kOpenRowsMax));
}

TEST(WorkerScreen, BreaksARowThatNeverEnds) {
  WorkerScreen screen;
  const std::string text(WorkerScreen::kColumnsMax + 10, 'x');
  screen.Write(text);
  EXPECT_THAT(screen.TakeAll(), ElementsAre(text.substr(10), "xxxxxxxxxx"));
}

// Bytes drawn from those that mean something, in pieces: nothing may be lost track of, and no row
// may be wider than the terminal.
TEST(WorkerScreen, TakesAnyBytes) {
  std::string alphabet = "ab\r\n\b\t\x1b[;?0123456789ABCDGJKPX@hlm]\a\\\xc3\xa9\xe6\x97\xa5\xff";
  alphabet.push_back('\0');
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    WorkerScreen screen;
    for (int piece = 0; piece < 50; ++piece) {
      std::string bytes(random() % 40, ' ');
      for (char& c : bytes) c = alphabet[random() % alphabet.size()];
      screen.Write(bytes);
      for (const std::string& row : screen.OpenRows(10)) EXPECT_LE(ColumnsWithoutStyles(row), 10);
      EXPECT_LT(screen.CursorInLastRow(10), 10);
      if (random() % 4 == 0) screen.TakeSettled();
    }
    EXPECT_THAT(screen.TakeAll(), Not(IsEmpty())) << "50 pieces leave something";
    EXPECT_THAT(screen.OpenRows(10), IsEmpty());
  }
}

}  // namespace
}  // namespace muster::agent

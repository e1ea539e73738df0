#include "proto/base/words.h"

#include <vector>

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(RanksInWords, NamesRunsOfThreeAndMoreAsRanges) {
  EXPECT_EQ(RanksInWords({3}), "rank 3");
  EXPECT_EQ(RanksInWords({3, 5}), "ranks 3 and 5");
  EXPECT_EQ(RanksInWords({4, 5, 6, 7}), "ranks 4-7");
  EXPECT_EQ(RanksInWords({0, 1, 3, 4, 5}), "ranks 0, 1 and 3-5");
}

TEST(RanksInWords, CutsLongLists) {
  std::vector<int> even;
  for (int rank = 0; rank < 200; rank += 2) even.push_back(rank);
  EXPECT_EQ(RanksInWords(even), "ranks 0, 2, 4, 6, 8, 10 and 94 more");
}

TEST(AppendUtf8, TakesOneToFourBytesForACharacter) {
  std::string text;
  for (const uint32_t code : {0x61u, 0xFCu, 0x20ACu, 0x1F40Du}) AppendUtf8(code, text);
  EXPECT_EQ(text, "a\xC3\xBC\xE2\x82\xAC\xF0\x9F\x90\x8D");
}

TEST(ShowInvisible, NamesWhatNobodySees) {
  EXPECT_EQ(ShowInvisible("\xef\xbb\xbfhost\xc2\xa0slots=1\r"),
            "<U+FEFF>host<U+00A0>slots=1<U+000D>");
  EXPECT_EQ(ShowInvisible("a\xe2\x80\x8b"
                          "b \x1b[1m"),
            "a<U+200B>b <U+001B>[1m");
}

TEST(ShowInvisible, LeavesTheRestAsItIs) {
  for (const char* text : {"", "two words\tand\nlines",
                           "gr\xc3\xb6\xc3\x9f"
                           "er \xe6\x97\xa5 \xf0\x9f\x98\x80",
                           "\xff\xe2", "\xc3"}) {
    EXPECT_EQ(ShowInvisible(text), text);
  }
}

// ESC, BEL, DEL, NUL; C1 as a character, as a byte, and behind an overlong or cut beginning.
TEST(ForTerminal, LeavesNoControlCharacter) {
  EXPECT_EQ(ForTerminal("a\x1b]52;c;x\ab\x7f\n"), "a<U+001B>]52;c;x<U+0007>b<U+007F><U+000A>");
  EXPECT_EQ(ForTerminal(absl::string_view("\0\x1b[31m", 6)), "<U+0000><U+001B>[31m");
  EXPECT_EQ(ForTerminal("\xc2\x9b"
                        "2J \x9b"
                        "2J"),
            "<U+009B>2J <9B>2J");
  EXPECT_EQ(ForTerminal("\xc1\x9b \xe0\x82\x9b \xe2\x9b"), "\xc1<9B> \xe0<82><9B> \xe2<9B>");
}

TEST(ForTerminal, LeavesCharactersWhoseBytesLookLikeControls) {
  for (const char* text : {"caf\xc3\xa9 \xe2\x86\x92 \xe6\x97\xa5", "\xf0\x9f\x98\x80 \xff"}) {
    EXPECT_EQ(ForTerminal(text), text);
    EXPECT_EQ(LinesForTerminal(text), text);
    EXPECT_EQ(WithoutControls(text), text);
  }
}

TEST(LinesForTerminal, KeepsLinesAndColours) {
  const char* const kLines = "one\ttwo\r\n\x1b[1;38:5:9mred\x1b[m \x1b[4mline\x1b[0m\n";
  EXPECT_EQ(LinesForTerminal(kLines), kLines);
  EXPECT_EQ(LinesForTerminal("\x1b[8mhidden\n"), "\x1b[8mhidden\n\x1b[0m");
}

// A window, a clipboard, a mode of the keyboard (xterm's ESC [ > 4 m), a colour without an end.
TEST(LinesForTerminal, ShowsEveryOtherSequence) {
  EXPECT_EQ(LinesForTerminal("\x1b[2J\x1b]0;x\a"), "<U+001B>[2J<U+001B>]0;x<U+0007>");
  EXPECT_EQ(LinesForTerminal("\x1b[>4;2m"), "<U+001B>[>4;2m");
  EXPECT_EQ(LinesForTerminal("\x1b[31\x1b[0m"), "<U+001B>[31\x1b[0m");
  EXPECT_EQ(LinesForTerminal("\x1b[31"), "<U+001B>[31");
  EXPECT_EQ(LinesForTerminal("\xc2\x9b"
                             "31m"),
            "<U+009B>31m");
}

TEST(WithoutControls, MarksEach) {
  EXPECT_EQ(WithoutControls("n\x1b[2J\n\xc2\x9b\xe6\x97\xa5"), "n?[2J??\xe6\x97\xa5");
}

}  // namespace
}  // namespace muster

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
                           "\xff\xe2\x80", "\xc3"}) {
    EXPECT_EQ(ShowInvisible(text), text);
  }
}

}  // namespace
}  // namespace muster

#include "agent/console/line_folding.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MonoTime AtMs(int ms) { return MonoTime::At(absl::Milliseconds(ms)); }

LineFolder MakeFolder(int num_ranks) {
  return LineFolder({.window = absl::Milliseconds(50), .num_ranks = num_ranks});
}

TEST(MakeFoldedPrefix, NamesRanksAndTheirNumber) {
  EXPECT_EQ(MakeFoldedPrefix("host", {Rank(0), Rank(1), Rank(4)}), "[host:0-1,4 ×3] ");
}

TEST(LineFolder, FoldsEqualLinesOfSeveralRanks) {
  LineFolder folder = MakeFolder(3);
  folder.Add(Rank(2), "hello", AtMs(0));
  folder.Add(Rank(0), "hello", AtMs(10));
  EXPECT_THAT(folder.TakeDue(AtMs(49)), IsEmpty());
  EXPECT_EQ(folder.NextDeadline(), AtMs(50));
  EXPECT_THAT(folder.TakeDue(AtMs(50)), ElementsAre(FoldedLine{"hello", {Rank(0), Rank(2)}}));
  EXPECT_TRUE(folder.NextDeadline().is_infinite());
}

TEST(LineFolder, DoesNotWaitOnceEveryRankHasPrintedTheLine) {
  LineFolder folder = MakeFolder(2);
  folder.Add(Rank(0), "hello", AtMs(0));
  folder.Add(Rank(1), "hello", AtMs(1));
  EXPECT_THAT(folder.TakeDue(AtMs(1)), ElementsAre(FoldedLine{"hello", {Rank(0), Rank(1)}}));
}

TEST(LineFolder, PrintsALineThatOneRankRepeatsAsOftenAsItCame) {
  LineFolder folder = MakeFolder(2);
  folder.Add(Rank(0), "x", AtMs(0));
  folder.Add(Rank(0), "x", AtMs(1));
  EXPECT_THAT(folder.TakeAll(),
              ElementsAre(FoldedLine{"x", {Rank(0)}}, FoldedLine{"x", {Rank(0)}}));
}

TEST(LineFolder, KeepsTheOrderOfEachRanksLines) {
  LineFolder folder = MakeFolder(2);
  folder.Add(Rank(0), "a", AtMs(0));
  folder.Add(Rank(0), "b", AtMs(0));
  folder.Add(Rank(1), "b", AtMs(1));
  folder.Add(Rank(1), "a", AtMs(1));
  EXPECT_THAT(folder.TakeAll(),
              ElementsAre(FoldedLine{"a", {Rank(0)}}, FoldedLine{"b", {Rank(0), Rank(1)}},
                          FoldedLine{"a", {Rank(1)}}));
}

TEST(LineFolder, StartsAnewForALineThatComesAfterItsLikesWerePrinted) {
  LineFolder folder = MakeFolder(3);
  folder.Add(Rank(0), "x", AtMs(0));
  EXPECT_THAT(folder.TakeDue(AtMs(60)), SizeIs(1));
  folder.Add(Rank(1), "x", AtMs(61));
  EXPECT_THAT(folder.TakeDue(AtMs(111)), ElementsAre(FoldedLine{"x", {Rank(1)}}));
}

TEST(LineFolder, HoldsABoundedNumberOfBytes) {
  LineFolder folder({.window = absl::Milliseconds(50), .num_ranks = 2, .bytes_max = 1000});
  for (int i = 0; i < 10; ++i) folder.Add(Rank(0), std::string(200, 'a' + i), AtMs(0));
  const auto due = folder.TakeDue(AtMs(0));
  ASSERT_FALSE(due.empty());
  EXPECT_EQ(due.front().text, std::string(200, 'a'));
  EXPECT_LT(due.size(), 10u);
}

}  // namespace
}  // namespace muster::agent

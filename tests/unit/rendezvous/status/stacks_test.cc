#include "rendezvous/status/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::status {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

hangs::RankReport Rank(int rank, const std::string& function) {
  return {.rank = rank, .pid = 100 + rank, .doing = "asleep", .frames = {function, "main"}};
}

TEST(MakeStacks, MergesRanksThatAreAtTheSamePlace) {
  const StacksOfNode stacks = MakeStacks({Rank(0, "wait"), Rank(1, "read"), Rank(2, "wait")}, 4096);
  ASSERT_THAT(stacks.groups, SizeIs(2));
  EXPECT_THAT(stacks.groups[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(stacks.groups[0].native, ElementsAre("wait", "main"));
  EXPECT_THAT(stacks.ranks, SizeIs(3));
}

TEST(MakeStacks, NeverIsLongerThanItMayBe) {
  std::vector<hangs::RankReport> ranks;
  for (int rank = 0; rank < 64; ++rank) {
    ranks.push_back(Rank(rank, absl::StrCat("function_", rank)));
    for (int i = 0; i < 46; ++i) ranks.back().frames.push_back(std::string(160, 'f'));
  }
  for (const size_t bytes_max : {200'000, 20'000, 4096, 100}) {
    EXPECT_LE(ToJson(MakeStacks(ranks, bytes_max)).size(), bytes_max);
  }
  EXPECT_THAT(MakeStacks(ranks, 20'000).groups, SizeIs(64)) << "frames are left out first";
}

TEST(MergeGroups, MergesOverNodesAndPutsTheMostCommonFirst) {
  const auto merged = MergeGroups({MakeStacks({Rank(0, "wait"), Rank(1, "read")}, 4096),
                                   MakeStacks({Rank(2, "wait"), Rank(3, "wait")}, 4096)});
  ASSERT_THAT(merged, SizeIs(2));
  EXPECT_THAT(merged[0].ranks, ElementsAre(0, 2, 3));
  EXPECT_THAT(merged[1].ranks, ElementsAre(1));
}

TEST(ParseStacks, ReadsBackWhatWasMade) {
  const StacksOfNode made = MakeStacks({Rank(0, "wait"), Rank(1, "read")}, 4096);
  const auto read = ParseStacks(ToJson(made));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), ToJson(made));
}

TEST(ParseStacks, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", R"({"groups": [{"ranks": "x"}]})", R"({"schema": 9})"}) {
    EXPECT_FALSE(ParseStacks(text).ok()) << text;
  }
  EXPECT_THAT(MergeGroups({*ParseStacks(R"({"groups": [{"native": ["f"]}]})")}), IsEmpty());
}

}  // namespace
}  // namespace muster::status

#include "rendezvous/status/diary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::status {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

DiaryEntry Full() {
  return {.what = kSteps,
          .unix_millis = 1700000000123,
          .after_seconds = 1.5,
          .spent = "running",
          .round = 2,
          .restart_count = 1,
          .rank = 3,
          .exit_code = 7,
          .signal = 9,
          .text = "it \"failed\"\n",
          .steps = {{.rank = 0, .step = 11}, {.rank = 1, .step = -1}},
          .run_id = "job",
          .node = "node1",
          .shape = {.num_nodes = 2, .first_rank = 4, .num_ranks = 4, .world_size = 8}};
}

TEST(Diary, IsReadAsItWasWritten) {
  const auto read =
      ParseDiary(absl::StrCat(ToJsonLine({.what = kBegan, .run_id = "job"}), ToJsonLine(Full())));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(2));
  const DiaryEntry& entry = read->back();
  EXPECT_EQ(entry.text, Full().text);
  EXPECT_EQ(entry.unix_millis, 1700000000123);
  EXPECT_EQ(entry.after_seconds, 1.5);
  EXPECT_EQ(entry.round, 2);
  EXPECT_EQ(entry.exit_code, 7);
  EXPECT_EQ(entry.signal, 9);
  EXPECT_EQ(entry.shape.world_size, 8);
  ASSERT_THAT(entry.steps, SizeIs(2));
  EXPECT_EQ(entry.steps[0].step, 11);
  EXPECT_EQ(ToJsonLine(entry), ToJsonLine(Full()));
}

TEST(Diary, LeavesOutWhatIsNotKnown) {
  const std::string line = ToJsonLine({.what = kTurned, .spent = "running"});
  EXPECT_EQ(
      line,
      "{\"what\":\"turned\",\"unix_millis\":0,\"after_seconds\":0.0,\"spent\":\"running\"}\n");
}

TEST(Diary, SkipsTheHalfOfALineAndWhatIsNoEntry) {
  const auto read = ParseDiary(absl::StrCat("[]\nnonsense\n{\"what\":7}\n", ToJsonLine(Full()),
                                            ToJsonLine(Full()).substr(0, 20)));
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(*read, SizeIs(1));
}

TEST(Diary, OfANewerVersionIsRefusedInWords) {
  const auto read = ParseDiary("{\"what\":\"began\",\"schema\":2}\n");
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("the diary has schema 2"));
}

TEST(Diary, TakesValuesOfAnotherTypeForUnknown) {
  const auto read = ParseDiary("{\"what\":\"steps\",\"round\":\"x\",\"steps\":[[1],[0,2],7]}\n");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->front().round, -1);
  EXPECT_THAT(read->front().steps, SizeIs(1));
}

TEST(Spent, HasANameEach) {
  for (const Spent spent : kAllSpent) {
    EXPECT_EQ(ParseSpent(ToString(spent)), spent);
  }
  EXPECT_EQ(ParseSpent("idle"), std::nullopt);
}

}  // namespace
}  // namespace muster::status

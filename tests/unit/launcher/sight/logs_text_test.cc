#include "launcher/sight/logs_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::launcher {
namespace {

using status::LogPiece;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

LogPiece Piece(int rank, const std::string& text, const std::string& stream = "stdout") {
  return {.from = {.rank = rank, .stream = stream},
          .next = static_cast<int64_t>(text.size()),
          .size = static_cast<int64_t>(text.size()),
          .text = text};
}

InquiryPart Node(int first_rank, int num_ranks, status::LogsOfNode logs) {
  return {.node = "node1",
          .first_rank = first_rank,
          .num_ranks = num_ranks,
          .body = status::ToJson(logs)};
}

TEST(MergedLines, SayOfEachLineWhoWroteIt) {
  EXPECT_EQ(MergedLines({Piece(0, "start\nstep 1\n"), Piece(1, "start\nslow\nstep 1\n"),
                         Piece(2, "start\nstep 1\n")}),
            "[0-2] start\n[1] slow\n[0-2] step 1\n");
}

TEST(MergedLines, KeepALineThatARankWritesAgain) {
  EXPECT_EQ(MergedLines({Piece(0, "a\na\n"), Piece(1, "a\n")}), "[0 and 1] a\n[0] a\n");
}

TEST(MergedLines, KeepTheStreamsApart) {
  EXPECT_EQ(MergedLines({Piece(0, "a\n"), Piece(0, "a\n", "stderr")}), "[0 stderr] a\n[0] a\n");
}

TEST(LogReel, ShowsOneLogAfterTheOther) {
  LogReel reel(LogLayout::kByRank, false);
  EXPECT_EQ(reel.Show({Node(0, 2, {.pieces = {Piece(0, "zero\n"), Piece(1, "one\n")}})}),
            "==> rank 0, stdout, attempt 0 <==\nzero\n\n"
            "==> rank 1, stdout, attempt 0 <==\none\n");
  EXPECT_FALSE(reel.HasMore());
}

TEST(DetailOf, GoesOnInTheLogsOfTwoThousandRanksAndSaysWhenThereAreMore) {
  const auto ask = [](int num_ranks) {
    status::LogsAsk ask;
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (const char* stream : {"stdout", "stderr"}) {
        ask.places.push_back({.rank = rank, .stream = stream, .offset = 1'000'000});
      }
    }
    return ask;
  };
  EXPECT_TRUE(DetailOf(ask(2000)).ok());
  const absl::Status refused = DetailOf(ask(4000)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("(8000)"), HasSubstr("--rank=N")));
}

TEST(LogReel, GoesOnWhereItWas) {
  LogReel reel(LogLayout::kPrefixed, false);
  EXPECT_EQ(reel.Show({Node(0, 1, {.pieces = {Piece(0, "zero\n")}})}), "[0] zero\n");
  const status::LogsAsk ask = reel.Next(10, /*follows=*/false);
  ASSERT_EQ(ask.places.size(), 1u);
  EXPECT_EQ(ask.places[0].offset, 5);
  LogPiece more = Piece(0, "more\n");
  more.size = 1000;
  reel.Show({Node(0, 1, {.pieces = {more}})});
  EXPECT_TRUE(reel.HasMore());
}

TEST(LogReel, NamesOnceWhoDoesNotAnswer) {
  LogReel reel(LogLayout::kPrefixed, false);
  InquiryPart silent{.node = "node2", .status = absl::UnavailableError("gone")};
  EXPECT_EQ(reel.Show({silent}), "node2: gone\n");
  EXPECT_EQ(reel.Show({silent}), "");
  EXPECT_FALSE(reel.HasAnswers());
}

TEST(LogReel, LetsANodeSpeakForItsOwnRanksAlone) {
  LogReel reel(LogLayout::kPrefixed, false);
  EXPECT_EQ(reel.Show({Node(4, 2, {.pieces = {Piece(0, "of another\n"), Piece(5, "own\n")}})}),
            "[5] own\n");
}

TEST(FirstErrorText, IsThatOfTheFirstAttemptAndTime) {
  const auto parts = {
      Node(0, 2,
           {.errors = {{.rank = 0, .attempt = 1, .unix_millis = 1, .text = "later"},
                       {.rank = 1, .attempt = 0, .unix_millis = 7000, .text = "after"}}}),
      Node(2, 1,
           {.errors = {{.rank = 2, .attempt = 0, .unix_millis = 6000, .text = "first\n\n"}}})};
  EXPECT_THAT(FirstErrorText(parts), AllOf(HasSubstr("rank 2 on node1, attempt 0 at "),
                                           HasSubstr(":\nfirst\n"), Not(HasSubstr("after"))));
  EXPECT_EQ(FirstErrorText({}), "");
}

}  // namespace
}  // namespace muster::launcher

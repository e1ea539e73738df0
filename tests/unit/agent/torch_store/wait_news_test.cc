// What is told of who waits: two ranks, of whom the second has not come.
#include "agent/torch_store/wait_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kKey[] = "default_pg/0//cpu//0/rank_1";

class WaitNewsTest : public ::testing::Test {
 protected:
  WaitNewsTest() { Come(0); }
  static MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }
  // Rank r connects as connection r + 1.
  void Come(int rank) {
    const StoreConnection connection(rank + 1);
    attendance_.Connect(connection,
                        {.address = "127.0.0.1", .port = 4000 + rank, .is_local = true});
    attendance_.Arrive(connection);
    attendance_.Identify("127.0.0.1", 4000 + rank, Rank(rank));
    waits_.Open(connection);
  }
  void Wait(int rank, MonoTime now) {
    const StoreWait wait{.absent = {kKey}};
    waits_.Note(StoreConnection(rank + 1), &wait, /*cancelled=*/false, barriers_, now);
  }

  Attendance attendance_{2, {{"node1", "127.0.0.1", Rank(0), 2}}, NodeRank(0)};
  Barriers barriers_{2};
  Waits waits_;
  WaitNews news_{{}, attendance_, barriers_, waits_};
};

TEST_F(WaitNewsTest, LooksUpAndTellsWhoIsMissingAndThatAllHaveCome) {
  EXPECT_TRUE(news_.NextDeadline().is_infinite());
  Wait(0, At(100));
  EXPECT_EQ(news_.NextDeadline(), At(108));
  EXPECT_FALSE(news_.TakeLookup(At(107)));
  EXPECT_TRUE(news_.TakeLookup(At(108)));
  EXPECT_FALSE(news_.TakeLookup(At(109))) << "once";
  EXPECT_EQ(news_.NextDeadline(), At(110));
  EXPECT_EQ(news_.TakeNotice(At(109)), std::nullopt);
  const std::optional<TellPeople> notice = news_.TakeNotice(At(110));
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(notice->text, "init_process_group: 1 of 2 ranks is there; waiting for rank 1 for 10s");
  EXPECT_EQ(news_.NextDeadline(), At(168)) << "a minute later, less the look-up";

  Come(1);
  const std::optional<TellPeople> over = news_.NoteArrival(At(112));
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->text, "all 2 ranks are there now, after 12s");
  EXPECT_EQ(news_.NoteArrival(At(113)), std::nullopt);
}

TEST_F(WaitNewsTest, TellsTheHangWatchWhoWaitsForWhom) {
  EXPECT_THAT(news_.Gatherings(At(1)), IsEmpty());
  Wait(0, At(1));
  const std::vector<hangs::Gathering> gatherings = news_.Gatherings(At(2));
  ASSERT_THAT(gatherings, SizeIs(1));
  EXPECT_TRUE(gatherings[0].is_start);
  EXPECT_THAT(gatherings[0].waiting, ElementsAre(0));
  EXPECT_THAT(gatherings[0].missing, ElementsAre(1));
}

TEST_F(WaitNewsTest, TellsOnceThatSomebodyGaveUp) {
  Wait(0, At(0));
  EXPECT_EQ(news_.NoteGivenUp(StoreConnection(1), /*only_closes=*/false, At(20)), std::nullopt)
      << "its wait is held";
  const auto told = news_.NoteGivenUp(StoreConnection(1), /*only_closes=*/true, At(20));
  ASSERT_TRUE(told.has_value());
  EXPECT_TRUE(told->is_warning);
  EXPECT_THAT(told->text, HasSubstr("rank 0 gave up after 20s: init_process_group needs 2 ranks"));
  EXPECT_EQ(news_.NoteGivenUp(StoreConnection(1), /*only_closes=*/true, At(21)), std::nullopt);
}

TEST_F(WaitNewsTest, TellsNothingOnceTheRoundIsBeingStopped) {
  Wait(0, At(0));
  news_.Stop();
  EXPECT_TRUE(news_.NextDeadline().is_infinite());
  EXPECT_EQ(news_.TakeNotice(At(60)), std::nullopt);
  EXPECT_THAT(news_.Gatherings(At(60)), IsEmpty());
}

}  // namespace
}  // namespace muster::agent

#include "rendezvous/hangs/judge/end_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

enum class Does { kNothing, kComputes, kMoves, kEnded };

// A job of ranks that do something, whose evidence is read when the watch wants it.
class Ending : public ::testing::Test {
 protected:
  void Start(int num_ranks) {
    does_.assign(num_ranks, Does::kMoves);
    watch_.StartRound(kRound, num_ranks);
  }
  void Ends(const std::vector<int>& ranks) {
    for (const int rank : ranks) does_[rank] = Does::kEnded;
    const auto count = std::count(does_.begin(), does_.end(), Does::kEnded);
    Hear(watch_.OnEnded(static_cast<int>(count), now_));
  }
  void Pass(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      now_ = now_ + absl::Seconds(1);
      if (now_ < watch_.NextQuestion()) continue;
      ++num_questions_;
      Hear(watch_.Listen(Tell(), is_looked_into_, now_));
    }
  }

  Evidence Tell() const {
    Evidence evidence;
    for (int r = 0; r < static_cast<int>(does_.size()); ++r) {
      RankEvidence rank{.rank = r, .node = "node1", .pid = 100 + r};
      rank.silent_for = does_[r] == Does::kMoves ? absl::ZeroDuration() : absl::Minutes(5);
      rank.is_busy = does_[r] == Does::kComputes;
      rank.doing = rank.is_busy ? "computing (98 % of a core)" : "asleep (hrtimer_nanosleep)";
      if (does_[r] == Does::kEnded) rank.life = Life::kEnded;
      evidence.ranks.push_back(rank);
    }
    if (unseen_ >= 0) {
      evidence.ranks[unseen_].life = Life::kUnreachable;
      evidence.ranks[unseen_].pid = 0;
    }
    return evidence;
  }

  void Hear(const std::optional<WatchOrder>& say) {
    if (!say) return;
    const auto* notice = std::get_if<SayNotice>(&*say);
    if (notice != nullptr) {
      EXPECT_EQ(notice->round, kRound);
      said_.push_back(notice->text);
    } else {
      EXPECT_EQ(std::get<SayRecovery>(*say).round, kRound);
      said_.push_back("over: " + std::get<SayRecovery>(*say).text);
    }
  }

  static constexpr Round kRound = Round(2);

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  std::vector<Does> does_;
  int unseen_ = -1;
  bool is_looked_into_ = false;
  int num_questions_ = 0;
  std::vector<std::string> said_;
  EndWatch watch_;
};

TEST_F(Ending, OfTheOthersNamesARankThatStandsStillWithinTwelveSeconds) {
  Start(3);
  Pass(absl::Minutes(10));
  EXPECT_EQ(num_questions_, 0) << "nobody has ended";
  does_[1] = Does::kNothing;
  Ends({0});
  Pass(absl::Seconds(1));
  Ends({2});
  Pass(absl::Seconds(7));
  EXPECT_THAT(said_, IsEmpty());
  Pass(absl::Seconds(5));
  EXPECT_THAT(said_, ElementsAre("ranks 0 and 2 have ended; rank 1 has not: pid 101 on node1 is "
                                 "asleep (hrtimer_nanosleep)"));
  Pass(absl::Hours(1));
  EXPECT_THAT(said_, SizeIs(1)) << "it is said once";
}

TEST_F(Ending, IsOverOnceTheRankHasEnded) {
  Start(2);
  does_[1] = Does::kNothing;
  Ends({0});
  Pass(absl::Seconds(40));
  ASSERT_THAT(said_, SizeIs(1));
  Ends({1});
  EXPECT_EQ(said_.back(), "over: rank 1 has ended, 40s after the others");
  EXPECT_EQ(watch_.NextQuestion(), MonoTime::InfiniteFuture());
}

TEST_F(Ending, IsOverOnceTheRankDoesSomethingAndIsToldLaterTheNextTime) {
  Start(2);
  does_[1] = Does::kNothing;
  Ends({0});
  Pass(absl::Seconds(20));
  ASSERT_THAT(said_, SizeIs(1));
  does_[1] = Does::kComputes;
  Pass(absl::Seconds(20));
  ASSERT_THAT(said_, SizeIs(2));
  EXPECT_EQ(said_[1], "over: it goes on: " + said_[0]);
  does_[1] = Does::kNothing;
  Pass(absl::Seconds(20));
  EXPECT_THAT(said_, SizeIs(2));
  Pass(absl::Minutes(3));
  EXPECT_THAT(said_, SizeIs(3));
}

// The last checkpoint is written by one rank.
TEST_F(Ending, LeavesARankThatComputesOrWritesAMinute) {
  Start(4);
  does_[0] = Does::kComputes;
  Ends({1, 2, 3});
  Pass(absl::Seconds(58));
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_LE(num_questions_, 20) << "it is not asked each second";
  Pass(absl::Seconds(12));
  EXPECT_THAT(said_, ElementsAre("ranks 1-3 have ended; rank 0 has not: pid 100 on node1 is "
                                 "computing (98 % of a core)"));
}

TEST_F(Ending, SaysNothingOfManyThatComputeOnWhereAFewHaveEnded) {
  Start(4);
  for (const int r : {0, 1, 2}) does_[r] = Does::kComputes;
  Ends({3});
  Pass(absl::Hours(1));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(Ending, SaysNothingOfRanksThatMoveOn) {
  Start(2);
  Ends({0});
  Pass(absl::Hours(1));
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_LE(num_questions_, 400);
}

TEST_F(Ending, NamesAFewOfTheMany) {
  Start(8);
  for (int r = 0; r < 6; ++r) does_[r] = Does::kNothing;
  Ends({6, 7});
  Pass(absl::Seconds(12));
  EXPECT_THAT(said_, ElementsAre("ranks 6 and 7 have ended; ranks 0-5 have not: "
                                 "pid 100 on node1 (rank 0) is asleep (hrtimer_nanosleep), "
                                 "pid 101 on node1 (rank 1) is asleep (hrtimer_nanosleep), "
                                 "pid 102 on node1 (rank 2) is asleep (hrtimer_nanosleep), "
                                 "pid 103 on node1 (rank 3) is asleep (hrtimer_nanosleep)"));
}

TEST_F(Ending, SaysNothingWhereRanksWaitForOthersOrOneIsNotSeen) {
  Start(3);
  does_[1] = Does::kNothing;
  Ends({0});
  is_looked_into_ = true;
  Pass(absl::Seconds(30));
  is_looked_into_ = false;
  unseen_ = 2;
  Pass(absl::Seconds(30));
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace muster::hangs

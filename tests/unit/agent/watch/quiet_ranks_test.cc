#include "agent/watch/quiet_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Ranks of which some are busy, looked at every ten seconds.
class Quiet : public ::testing::Test {
 protected:
  explicit Quiet() {
    for (const int rank : {0, 1, 2}) uses_[rank] = {};
    Look();
  }
  void Look() {
    std::vector<QuietRanks::RankUse> uses;
    for (const auto& [rank, use] : uses_) uses.push_back({rank, use});
    if (auto change = quiet_.Listen(uses, now_)) changes_.push_back(*change);
  }
  void Pass(absl::Duration time, const std::vector<int>& busy = {}) {
    for (absl::Duration passed; passed < time; passed += QuietRanks::kWindow) {
      now_ = now_ + QuietRanks::kWindow;
      for (const int rank : busy) uses_[rank].cpu_ticks += sysconf(_SC_CLK_TCK);
      Look();
    }
  }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  QuietRanks quiet_;
  std::map<int, ProcessUse> uses_;
  std::vector<QuietRanks::Change> changes_;
};

TEST_F(Quiet, IsSaidOnceAfterTwoMinutesAndOfWhomItIsNotTrue) {
  Pass(absl::Seconds(110), {1});
  EXPECT_THAT(changes_, IsEmpty());
  Pass(absl::Hours(1), {1});
  ASSERT_THAT(changes_, SizeIs(1));
  EXPECT_THAT(changes_[0].quiet, ElementsAre(0, 2));
  EXPECT_THAT(changes_[0].busy, ElementsAre(1));
  EXPECT_EQ(changes_[0].quiet_for, absl::Minutes(2));
}

TEST_F(Quiet, ThoseThatBecomeQuietALittleLaterAreNamedWithTheFirst) {
  Pass(absl::Seconds(20), {0, 2});
  Pass(absl::Minutes(5));
  ASSERT_THAT(changes_, SizeIs(1));
  EXPECT_THAT(changes_[0].quiet, ElementsAre(0, 1, 2));
}

TEST_F(Quiet, BytesAreSomethingAndSoIsAProcessThatHasGone) {
  for (int i = 0; i < 40; ++i) {
    uses_[0].io_bytes += QuietRanks::kBusyBytes + 1;
    uses_[1].cpu_ticks = 2 * (i % 2);
    uses_[2].io_bytes = -i;
    Pass(QuietRanks::kWindow);
  }
  EXPECT_THAT(changes_, IsEmpty());
}

TEST_F(Quiet, ALittleIsNothing) {
  for (int i = 0; i < 20; ++i) {
    uses_[0].io_bytes += 1024;
    uses_[0].cpu_ticks += 1;
    Pass(QuietRanks::kWindow, {1, 2});
  }
  ASSERT_THAT(changes_, SizeIs(1));
  EXPECT_THAT(changes_[0].quiet, ElementsAre(0));
}

TEST_F(Quiet, ItsEndIsSaidAndTheNextIsGivenThreeTimesTheTime) {
  Pass(absl::Minutes(10), {1, 2});
  Pass(absl::Seconds(10), {0, 1, 2});
  ASSERT_THAT(changes_, SizeIs(2));
  EXPECT_TRUE(changes_[1].is_over);
  EXPECT_THAT(changes_[1].quiet, ElementsAre(0));
  EXPECT_EQ(changes_[1].quiet_for, absl::Minutes(10));
  Pass(absl::Minutes(29), {1, 2});
  EXPECT_THAT(changes_, SizeIs(2));
  Pass(absl::Minutes(2), {1, 2});
  EXPECT_THAT(changes_, SizeIs(3));
}

TEST_F(Quiet, TimeThatNobodyWatchedCountsLittle) {
  now_ = now_ + absl::Hours(8);
  Look();
  EXPECT_THAT(changes_, IsEmpty());
}

TEST_F(Quiet, WhoIsNotLookedAtAndOtherProcessesBeginAnew) {
  Pass(absl::Seconds(110));
  uses_.erase(0);
  Pass(absl::Seconds(10), {1, 2});
  uses_[0] = {};
  Pass(absl::Seconds(60), {1, 2});
  EXPECT_THAT(changes_, IsEmpty());
  quiet_.StartRound();
  EXPECT_TRUE(quiet_.IsDue(now_));
  Pass(absl::Seconds(110), {1, 2});
  EXPECT_FALSE(quiet_.IsDue(now_ + absl::Seconds(9)));
  EXPECT_THAT(changes_, IsEmpty());
}

}  // namespace
}  // namespace muster::agent

// A reader that follows the logs sees a worker's last lines before the job hears of its end.
#include "agent/sight/log_followers.h"

#include <gtest/gtest.h>

#include <chrono>

#include "asio/io_context.hpp"

namespace muster::agent {
namespace {

class Followers : public ::testing::Test {
 protected:
  // Runs until `num_told` have been told, for half a minute at most.
  bool RunUntilTold(int num_told = 1) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (told_ < num_told && std::chrono::steady_clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    return told_ == num_told;
  }
  void Await() {
    followers_.AwaitLook([this] {
      ++told_;
      told_at_ = MonoNow();
    });
  }

  asio::io_context loop_;
  LogFollowers followers_{loop_};
  int told_ = 0;
  MonoTime told_at_;
};

TEST_F(Followers, AreThereWhileTheyLook) {
  const MonoTime now = MonoNow();
  EXPECT_FALSE(followers_.AreThere(now));
  followers_.OnLook(now);
  EXPECT_TRUE(followers_.AreThere(now + kFollowsFor));
  EXPECT_FALSE(followers_.AreThere(now + kFollowsFor + absl::Milliseconds(1)));
}

TEST_F(Followers, SeeAllBeforeAnEndIsTold) {
  Await();
  const MonoTime begin = MonoNow();
  followers_.OnShown(followers_.OnLook(MonoNow()), /*is_all=*/true);
  EXPECT_EQ(told_, 0) << "the answer has not come there yet";
  EXPECT_TRUE(RunUntilTold());
  EXPECT_GE(told_at_ - begin, kAnswerTravelsFor);
}

TEST_F(Followers, AreNotServedByALookThatHadBegunBefore) {
  const MonoTime begin = MonoNow();
  const uint64_t early = followers_.OnLook(begin);
  Await();
  followers_.OnShown(early, /*is_all=*/true);
  EXPECT_TRUE(RunUntilTold());
  EXPECT_GE(told_at_ - begin, kLooksAgainWithin);
}

TEST_F(Followers, AreNotServedByAWindowThatDoesNotShowAll) {
  Await();
  const MonoTime begin = MonoNow();
  followers_.OnShown(followers_.OnLook(begin), /*is_all=*/false);
  EXPECT_TRUE(RunUntilTold());
  EXPECT_GE(told_at_ - begin, kLooksAgainWithin);
}

TEST_F(Followers, ServeAllEndsThatWaitWithOneLook) {
  Await();
  Await();
  followers_.OnShown(followers_.OnLook(MonoNow()), /*is_all=*/true);
  EXPECT_TRUE(RunUntilTold(2));
  followers_.OnShown(followers_.OnLook(MonoNow()), /*is_all=*/true);
  loop_.restart();
  loop_.run_for(absl::ToChronoMilliseconds(2 * kAnswerTravelsFor));
  EXPECT_EQ(told_, 2) << "each is told once";
}

TEST(LogFollowers, TellNothingOnceTheyAreGone) {
  asio::io_context loop;
  bool is_told = false;
  {
    LogFollowers followers(loop);
    followers.AwaitLook([&] { is_told = true; });
  }
  loop.run();
  EXPECT_FALSE(is_told);
}

}  // namespace
}  // namespace muster::agent

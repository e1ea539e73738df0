#include "agent/watch/quiet_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "asio/io_context.hpp"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Its one worker sleeps and tells nothing, whatever its pulse says.
class QuietWatchTest : public ::testing::Test {
 protected:
  QuietWatchTest() {
    WatchedRound round{.round = Round(1)};
    round.boards.emplace_back();
    round.torch_servers = {""};
    ranks_.StartRound(std::move(round));
    ranks_.OnSpawned(0, worker_.pid());
    watch_.StartRound();
  }
  void Pass(absl::Duration time, bool is_told) {
    for (absl::Duration passed; passed < time; passed += QuietRanks::kWindow) {
      watch_.Tick({{.rank = 0, .is_told = is_told}}, /*is_looked_into=*/false, now_);
      now_ = now_ + QuietRanks::kWindow;
    }
  }

  MonoTime now_ = MonoNow();
  testing::Subprocess worker_{{.argv = {"/usr/bin/sleep", "1000"}}};
  asio::io_context loop_;
  LocalRanks ranks_{loop_, "node1"};
  RankLooks looks_{loop_};
  std::vector<std::string> said_;
  QuietWatch watch_{ranks_, looks_, [this](bool is_over, const std::string& text) {
                      said_.push_back((is_over ? "over: " : "") + text);
                    }};
};

TEST_F(QuietWatchTest, NamesARankThatDoesNothingForMinutesAndSaysWhatItWaitsFor) {
  ASSERT_TRUE(testing::WaitUntil([&] {
    const std::optional<ProcessLook> look = LookAtProcess(worker_.pid(), now_);
    return look && look->state == 'S';
  }));
  Pass(QuietRanks::kNoticeMin + 3 * QuietRanks::kWindow, /*is_told=*/false);
  EXPECT_TRUE(testing::WaitUntil([&] {
    loop_.restart();
    loop_.run_for(std::chrono::milliseconds(5));
    return !said_.empty();
  }));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 0 has used almost no processor time")));
  EXPECT_THAT(said_[0], HasSubstr("rank 0 (pid " + std::to_string(worker_.pid()) + ") asleep"));
}

TEST_F(QuietWatchTest, LeavesOneAloneThatANoticeNames) {
  watch_.LeaveAlone({0});
  Pass(10 * QuietRanks::kNoticeMin, /*is_told=*/false);
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(QuietWatchTest, LeavesOneAloneThatTellsWhatItDoes) {
  Pass(10 * QuietRanks::kNoticeMin, /*is_told=*/true);
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace muster::agent

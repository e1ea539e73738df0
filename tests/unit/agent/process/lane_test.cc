// A lane goes on while a thread can be had that is not stuck, and says so where none can.
#include "agent/process/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <new>
#include <vector>

#include "agent/process/aside.h"
#include "asio/io_context.hpp"
#include "proto/base/mono_time.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kLong = absl::Minutes(2);
constexpr absl::Duration kAtOnce = absl::ZeroDuration();

// Lanes have as many threads as a test allows.
class LaneTest : public ::testing::Test {
 protected:
  ~LaneTest() override { LetGo(); }

  Lane MakeLane(int num_threads) {
    *left_ = num_threads;
    return Lane("test", [left = left_](const std::string& name, absl::AnyInvocable<void()> body) {
      if (*left == 0) return false;
      --*left;
      return StartDetachedThread(name, std::move(body));
    });
  }
  // Does not end before LetGo.
  static absl::AnyInvocable<void()> Stuck(std::shared_future<void> until) {
    return [until] { until.wait(); };
  }
  void LetGo() {
    if (let_go_) let_go_->set_value();
    let_go_.reset();
  }
  static bool Ends(std::future<void>& task) {
    return task.wait_for(std::chrono::minutes(2)) == std::future_status::ready;
  }
  // A task, and when it has run.
  std::future<void> DoOne(const Lane& lane, bool expected = true) {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> result = done->get_future();
    EXPECT_EQ(lane.Do(kLong, [done] { done->set_value(); }), expected);
    return result;
  }

  const std::shared_ptr<int> left_ = std::make_shared<int>(0);
  std::unique_ptr<std::promise<void>> let_go_ = std::make_unique<std::promise<void>>();
  std::shared_future<void> until_ = let_go_->get_future().share();
};

TEST_F(LaneTest, HasItsThreadBeforeTheFirstTask) {
  const Lane lane = MakeLane(1);
  EXPECT_EQ(*left_, 0);
  std::future<void> done = DoOne(lane);
  EXPECT_TRUE(Ends(done));
}

TEST_F(LaneTest, LeavesAThreadBehindThatIsStuckAndTriesAnother) {
  const Lane lane = MakeLane(2);
  ASSERT_TRUE(lane.Do(kAtOnce, Stuck(until_)));
  std::future<void> done = DoOne(lane);
  EXPECT_TRUE(Ends(done));
}

TEST_F(LaneTest, SaysThatNoThreadIsToBeHad) {
  const Lane none = MakeLane(0);
  EXPECT_FALSE(none.Do(kLong, [] {}));
  const Lane stuck = MakeLane(1);
  auto has_begun = std::make_shared<std::promise<void>>();
  std::future<void> begun = has_begun->get_future();
  ASSERT_TRUE(stuck.Do(kAtOnce, [has_begun, until = until_] {
    has_begun->set_value();
    until.wait();
  }));
  ASSERT_TRUE(Ends(begun));
  EXPECT_FALSE(stuck.Do(kLong, [] {}));
}

TEST_F(LaneTest, WaitsForAThreadThatIsNotStuckYet) {
  const Lane lane = MakeLane(1);
  ASSERT_TRUE(lane.Do(kLong, Stuck(until_)));
  std::future<void> done = DoOne(lane);
  LetGo();
  EXPECT_TRUE(Ends(done));
}

TEST_F(LaneTest, GoesOnOnceAThreadIsToBeHadAgain) {
  const Lane lane = MakeLane(0);
  EXPECT_FALSE(lane.Do(kLong, [] {}));
  *left_ = 1;
  std::future<void> done = DoOne(lane);
  EXPECT_TRUE(Ends(done));
}

TEST_F(LaneTest, BoundsItsThreadsAndWhatWaitsForThem) {
  const Lane lane = MakeLane(1000);
  for (int i = 0; i < Lane::kThreadsMax; ++i) ASSERT_TRUE(lane.Do(kLong, Stuck(until_)));
  EXPECT_EQ(*left_, 1000 - Lane::kThreadsMax);
  // Tasks that no thread has taken yet wait as well.
  int num_waiting = 0;
  while (lane.Do(kLong, [] {})) ASSERT_LE(++num_waiting, 2 * static_cast<int>(Lane::kQueuedMax));
  EXPECT_EQ(*left_, 1000 - Lane::kThreadsMax);
}

TEST_F(LaneTest, LosesOnlyTheTaskThatRunsOutOfMemory) {
  const Lane lane = MakeLane(1);
  ASSERT_TRUE(lane.Do(kLong, [] { throw std::bad_alloc(); }));
  std::future<void> done = DoOne(lane);
  EXPECT_TRUE(Ends(done));
}

// Answers of questions, as the loop hears them.
class AsideTest : public LaneTest {
 protected:
  std::vector<std::optional<int>> Ask(Aside& aside, absl::Duration at_most,
                                      absl::AnyInvocable<int()> work) {
    std::vector<std::optional<int>> answers;
    aside.Run<int>(at_most, std::move(work),
                   [&](std::optional<int> answer) { answers.push_back(answer); });
    EXPECT_TRUE(answers.empty()) << "not from inside the call";
    const MonoTime end = MonoNow() + kLong;
    while (answers.empty() && MonoNow() < end) {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
    }
    return answers;
  }
  asio::io_context loop_;
};

using ::testing::ElementsAre;
using ::testing::Optional;

TEST_F(AsideTest, BringsTheAnswerOfALane) {
  Aside aside(loop_, MakeLane(1));
  EXPECT_THAT(Ask(aside, kLong, [] { return 7; }), ElementsAre(Optional(7)));
}

TEST_F(AsideTest, SaysAtOnceThatTheAnswerIsNotToBeHadWhereThereIsNoThread) {
  Aside aside(loop_, MakeLane(0));
  EXPECT_THAT(Ask(aside, kLong, [] { return 7; }), ElementsAre(std::nullopt));
}

TEST_F(AsideTest, SaysSoWhereTheAnswerTakesTooLong) {
  const Lane lane = MakeLane(1);
  Aside aside(loop_, lane);
  const auto wait = [until = until_] {
    until.wait();
    return 7;
  };
  EXPECT_THAT(Ask(aside, absl::Milliseconds(10), wait), ElementsAre(std::nullopt));
  // Its patience begins with the task, which may be later than the question.
  EXPECT_TRUE(testing::WaitUntil([&] { return !lane.Do(kLong, [] {}); })) << "it is stuck";
  EXPECT_THAT(Ask(aside, kLong, [] { return 7; }), ElementsAre(std::nullopt));
}

TEST_F(AsideTest, SaysSoWhereMemoryIsNotToBeHad) {
  Aside aside(loop_, MakeLane(1));
  EXPECT_THAT(Ask(aside, kLong, []() -> int { throw std::bad_alloc(); }),
              ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace muster::agent

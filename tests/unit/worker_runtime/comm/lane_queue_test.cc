#include "worker_runtime/comm/lane_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"

namespace muster::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Hours(1);

Call Numbered(int64_t number, MonoTime deadline = MonoTime::InfiniteFuture()) {
  return {.operation = {.sequence = number}, .deadline = deadline};
}
bool Push(LaneQueue& queue, int64_t number) {
  Call call = Numbered(number);
  return queue.Push(call);
}
bool PushLaunch(LaneQueue& queue, int64_t number) {
  Call call = Numbered(number);
  return queue.PushLaunch(call);
}
// Those whose turn it is, one after the other; each leaves the line at once.
std::vector<int64_t> Started(LaneQueue& queue) {
  std::vector<int64_t> numbers;
  while (std::optional<LaneQueue::Item> item = queue.TakeNext(/*is_idle=*/true)) {
    numbers.push_back(item->call.operation.sequence);
    queue.Leave(item->place);
  }
  return numbers;
}

TEST(LaneQueue, GivesCallsInTheOrderOfTheirCalling) {
  LaneQueue queue(nullptr);
  for (const int64_t number : {3, 1, 2}) EXPECT_TRUE(Push(queue, number));
  EXPECT_THAT(Started(queue), ElementsAre(3, 1, 2));
}

TEST(LaneQueue, HoldsACallUntilThoseOfOtherLanesBeforeItHaveStarted) {
  const auto order = std::make_shared<LaunchOrder>();
  LaneQueue first(order), second(order);
  Push(first, 1);
  Push(second, 2);
  Push(first, 3);
  EXPECT_THAT(Started(second), IsEmpty());
  EXPECT_THAT(Started(first), ElementsAre(1));
  EXPECT_THAT(Started(second), ElementsAre(2));
  EXPECT_THAT(Started(first), ElementsAre(3));
}

TEST(LaneQueue, ALaunchStandsInNoLine) {
  const auto order = std::make_shared<LaunchOrder>();
  LaneQueue first(order), second(order);
  Push(first, 1);
  PushLaunch(second, 2);
  EXPECT_THAT(Started(second), ElementsAre(2));
}

TEST(LaneQueue, ATaskWaitsUntilNothingIsUnderWay) {
  LaneQueue queue(nullptr);
  const LaneTask task("a task", [] { return absl::OkStatus(); });
  EXPECT_TRUE(queue.PushTask(task));
  Push(queue, 1);
  EXPECT_FALSE(queue.TakeNext(/*is_idle=*/false).has_value());
  const std::optional<LaneQueue::Item> item = queue.TakeNext(/*is_idle=*/true);
  ASSERT_TRUE(item.has_value() && item->task.has_value());
  item->task->Run();
  EXPECT_THAT(task.Wait(), testing::IsOk());
  EXPECT_TRUE(queue.TakeNext(/*is_idle=*/false).has_value());
}

TEST(LaneQueue, RefusesWhatItHasNoRoomFor) {
  LaneQueue queue(nullptr);
  for (size_t i = 0; i < LaneQueue::kMaxQueued; ++i) ASSERT_TRUE(Push(queue, 1));
  EXPECT_FALSE(Push(queue, 2));
  EXPECT_FALSE(PushLaunch(queue, 2));
  EXPECT_FALSE(queue.PushTask(LaneTask("a task", [] { return absl::OkStatus(); })));
  queue.TakeFirst();
  EXPECT_TRUE(Push(queue, 2));
}

TEST(LaneQueue, FindsACallWhoseDeadlineHasPassed) {
  LaneQueue queue(nullptr);
  const MonoTime now = MonoNow();
  Push(queue, 1);
  EXPECT_FALSE(queue.FindLate(now).has_value());
  Call late = Numbered(2, now);
  queue.Push(late);
  ASSERT_TRUE(queue.FindLate(now).has_value());
  EXPECT_EQ(queue.FindLate(now)->operation.sequence, 2);
}

TEST(LaneQueue, WaitsForACallForAWordAndForItsEnd) {
  LaneQueue queue(nullptr);
  // What another thread does while the lane waits with nothing under way.
  const auto wait_for = [&queue](const std::function<void()>& deed) {
    std::thread other(deed);
    const bool goes_on = queue.WaitForWork({}, kLong);
    other.join();
    return goes_on;
  };
  EXPECT_TRUE(wait_for([&] { Push(queue, 1); }));
  EXPECT_THAT(Started(queue), ElementsAre(1));
  EXPECT_TRUE(wait_for([&] { queue.Wake(); }));
  EXPECT_FALSE(wait_for([&] { queue.Close(LaneQueue::End::kGivenUp); }));
  queue.Close(LaneQueue::End::kClosed);
  EXPECT_EQ(queue.end(), LaneQueue::End::kGivenUp) << "who closes it first says how";
}

TEST(LaneQueue, AsksAgainSoonWhileSomethingIsUnderWay) {
  LaneQueue queue(nullptr);
  EXPECT_TRUE(queue.WaitForWork({.is_idle = false}, absl::Microseconds(20)));
  const auto order = std::make_shared<LaunchOrder>();
  const LaunchOrder::Turn before(*order);
  LaneQueue in_line(order);
  Push(in_line, 1);
  EXPECT_TRUE(in_line.WaitForWork({}, absl::Microseconds(20))) << "its turn may have come";
  EXPECT_FALSE(in_line.TakeNext(/*is_idle=*/true).has_value());
}

}  // namespace
}  // namespace muster::comm

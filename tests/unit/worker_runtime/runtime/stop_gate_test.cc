// One stop step, as a rank sees it: it holds, it goes on to the step that is named, it never passes
// it.
#include "worker_runtime/runtime/stop_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

namespace muster {
namespace {

const StopState kOpen = {.is_stopping = true, .reason = "why"};
StopState At(int64_t step) { return {.is_stopping = true, .step = step, .reason = "why"}; }

TEST(StopGate, SaysNoWhileThereIsNoStop) {
  StopGate gate;
  for (int64_t step = -1; step < 5; ++step) EXPECT_FALSE(gate.ShouldStop(step));
  EXPECT_EQ(gate.reason(), "");
}

TEST(StopGate, AnswersAStopWithTheStepThatWasBegun) {
  StopGate gate;
  EXPECT_EQ(gate.Hear(kOpen), -1);
  StopGate begun;
  EXPECT_FALSE(begun.ShouldStop(-1));
  EXPECT_EQ(begun.Hear(kOpen), 0);
}

TEST(StopGate, GoesOnToTheStepThatIsNamedAndNoFurther) {
  StopGate gate;
  EXPECT_FALSE(gate.ShouldStop(3));
  EXPECT_EQ(gate.Hear(kOpen), 4);
  EXPECT_EQ(gate.Hear(At(6)), std::nullopt);
  EXPECT_FALSE(gate.ShouldStop(4));
  EXPECT_FALSE(gate.ShouldStop(5));
  EXPECT_TRUE(gate.ShouldStop(6));
  EXPECT_TRUE(gate.ShouldStop(6));
  EXPECT_EQ(gate.reason(), "why");
}

TEST(StopGate, LeavesAtTheFirstQuestionBehindTheNamedStepWhereNotEveryStepIsAskedAfter) {
  StopGate gate;
  EXPECT_FALSE(gate.ShouldStop(10));
  EXPECT_EQ(gate.Hear(kOpen), 11);
  gate.Hear(At(11));
  EXPECT_TRUE(gate.ShouldStop(20));
}

TEST(StopGate, GoesOnAfterAStopThatWasWithdrawn) {
  StopGate gate;
  EXPECT_FALSE(gate.ShouldStop(0));
  gate.Hear(kOpen);
  gate.Hear({});
  EXPECT_FALSE(gate.ShouldStop(1));
  EXPECT_EQ(gate.Hear(kOpen), 2);
}

TEST(StopGate, KeepsTheNamedStepWhenTheAgentIsGone) {
  StopGate gate;
  EXPECT_FALSE(gate.ShouldStop(0));
  gate.Hear(kOpen);
  gate.Hear(At(1));
  gate.HearNoMore();
  EXPECT_TRUE(gate.ShouldStop(1));
}

TEST(StopGate, GoesOnWhenTheAgentIsGoneBeforeItNamedAStep) {
  StopGate gate;
  EXPECT_FALSE(gate.ShouldStop(0));
  gate.Hear(kOpen);
  gate.HearNoMore();
  EXPECT_FALSE(gate.ShouldStop(1));
}

// A program steps as fast as it can, while stops come and are withdrawn or named.
TEST(StopGate, NeverBeginsAStepBeyondItsWord) {
  StopGate gate;
  std::atomic<int64_t> begun = -1;
  std::thread program([&] {
    for (int64_t step = 0; !gate.ShouldStop(step); ++step) begun = step + 1;
  });
  while (begun < 0) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) {
    const std::optional<int64_t> floor = gate.Hear(kOpen);
    ASSERT_TRUE(floor.has_value());
    std::this_thread::yield();
    EXPECT_LE(begun, *floor);
    gate.Hear({});
  }
  const std::optional<int64_t> floor = gate.Hear(kOpen);
  ASSERT_TRUE(floor.has_value());
  gate.Hear(At(*floor + 2));
  program.join();
  EXPECT_EQ(begun, *floor + 2);
}

}  // namespace
}  // namespace muster

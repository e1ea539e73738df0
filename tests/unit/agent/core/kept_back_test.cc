#include "agent/core/kept_back.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Seconds(1);
constexpr absl::Duration kMoment = absl::Milliseconds(100);

class KeptBackTest : public TurnTest {
 protected:
  void Note(bool asks_workers, bool awaits_judge, absl::Duration within = kLimit) {
    kept_.Note(
        {Round(0), {.asks_workers = asks_workers, .awaits_judge = awaits_judge, .within = within}},
        now());
  }
  // What is left of a turn in which the workers are stopped.
  std::vector<std::string> KeepBack() {
    turn_.Do(TellRoundOver{.is_followed = true, .reason = "rank 3 failed"});
    turn_.Do(SignalWorkers{.signal = SIGTERM, .spared = {LocalRank(1)}});
    turn_.Do(ShowStatus{"stopping"});
    turn_.Do(SignalWorkers{.signal = SIGKILL});
    kept_.KeepBack(turn_);
    return Effects();
  }
  std::vector<std::string> TakeEffects() {
    std::vector<std::string> lines;
    for (const Effect& effect : kept_.TakeEffects(now())) lines.push_back(ToString(effect));
    return lines;
  }
  void Keep(int rank) {
    kept_.Keep({Round(0), LocalRank(rank),
                WorkerFailure{.rank = Rank(rank), .signal = SIGABRT, .age = kMoment}},
               now());
  }
  KeptBack kept_;
};

TEST_F(KeptBackTest, IsNothingWhereNobodyIsAsked) {
  EXPECT_THAT(KeepBack(), ElementsAre("tell_round_over followed=yes reason=\"rank 3 failed\"",
                                      "signal_workers SIGTERM spared=1", "status \"stopping\"",
                                      "signal_workers SIGKILL"));
  Keep(0);
  EXPECT_THAT(kept_.TakeFailures(now()), SizeIs(1));
  EXPECT_TRUE(kept_.Deadline().is_infinite());
}

TEST_F(KeptBackTest, AreSignalsAndTheWordThatTheRoundIsOverUntilTheWorkersHaveAnswered) {
  Note(true, false);
  EXPECT_TRUE(kept_.Deadline().is_infinite()) << "nothing waits";
  EXPECT_THAT(KeepBack(), ElementsAre("prepare_signal none", "prepare_signal SIGTERM spared=1",
                                      "status \"stopping\"", "signal_workers SIGKILL"));
  EXPECT_THAT(TakeEffects(), IsEmpty());
  EXPECT_EQ(kept_.Deadline(), now() + kLimit);
  Note(false, false);
  EXPECT_THAT(TakeEffects(), ElementsAre("tell_round_over followed=yes reason=\"rank 3 failed\"",
                                         "signal_workers SIGTERM spared=1"));
  EXPECT_THAT(TakeEffects(), IsEmpty());
  EXPECT_TRUE(kept_.Deadline().is_infinite());
}

TEST_F(KeptBackTest, AreFailuresAndNoSignalsUntilOtherNodesHaveAnswered) {
  Note(true, true);
  Keep(0);
  KeepBack();
  Note(false, true);
  EXPECT_THAT(TakeEffects(), SizeIs(2));
  EXPECT_THAT(kept_.TakeFailures(now()), IsEmpty());
  Pass(kMoment);
  Note(false, false);
  const std::vector<WorkerExited> told = kept_.TakeFailures(now());
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].failure->age, 2 * kMoment);
}

TEST_F(KeptBackTest, AreFailuresAlsoWhereOnlyTheWorkersHereAreAsked) {
  Note(true, false);
  Keep(0);
  EXPECT_THAT(kept_.TakeFailures(now()), IsEmpty());
}

TEST_F(KeptBackTest, IsNothingForLongerThanWasSaidFirst) {
  Note(true, true);
  Keep(1);
  KeepBack();
  const MonoTime end = now() + kLimit;
  Pass(kMoment);
  Note(true, true, absl::Hours(1));
  EXPECT_EQ(kept_.Deadline(), end);
  turn_.now = end;
  EXPECT_THAT(TakeEffects(), SizeIs(2));
  EXPECT_THAT(kept_.TakeFailures(now()), SizeIs(1));
  Note(true, true);
  EXPECT_THAT(KeepBack(), SizeIs(4)) << "a later abort of the round has no time of its own";
  EXPECT_THAT(TakeEffects(), IsEmpty());
}

TEST_F(KeptBackTest, AreFailuresThatThenSayWhoseCallHasEndedTheWorker) {
  hangs::LastCallsState state{.awaits_judge = true, .within = kLimit};
  kept_.Note({Round(0), state}, now());
  Keep(0);
  Keep(1);
  const auto call = [](int size, std::vector<int> ranks) {
    hangs::Call same{.label = "world", .operation = {}, .ranks = std::move(ranks), .age = {}};
    same.operation.kind = OperationKind::kAllReduce;
    same.operation.bytes = size;
    return same;
  };
  state.awaits_judge = false;
  state.said.aborted = {0};
  state.said.differences = {call(4096, {0, 1, 2}), call(8192, {3})};
  kept_.Note({Round(0), state}, now());
  const std::vector<WorkerExited> told = kept_.TakeFailures(now());
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_THAT(told[0].failure->ended_by, ::testing::HasSubstr("rank 3 called"));
  EXPECT_THAT(told[1].failure->ended_by, IsEmpty()) << "it is not among those that have aborted";
}

TEST_F(KeptBackTest, IsNothingOnceTheRoundIsOver) {
  Note(true, true);
  Keep(0);
  KeepBack();
  kept_.GiveUp();
  EXPECT_THAT(TakeEffects(), SizeIs(2));
  EXPECT_THAT(kept_.TakeFailures(now()), SizeIs(1));
}

}  // namespace
}  // namespace muster::agent

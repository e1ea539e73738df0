#include "worker_runtime/engine/executor_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/rng.h"
#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::engine {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Job;
using plan::Lane;
using plan::Program;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// However many launches of a step are behind, a wait looks at what is new.
TEST(ActionOrder, AsksForWhatIsDoneOnce) {
  constexpr int kActions = 1000;
  constexpr int kUnderWay = 3;
  ActionOrder order;
  for (int action = 0; action < kActions; ++action) order.Add(action);
  for (int step = 0; step < 2; ++step) {
    int first = 0;
    int looks = 0;
    const auto is_done = [&](int action) {
      ++looks;
      return action < first;
    };
    EXPECT_EQ(order.FirstUnderWay(is_done), plan::kNone);
    for (int action = 0; action < kActions; ++action) {
      order.Pass();
      first = std::max(0, action - kUnderWay);
      ASSERT_EQ(order.FirstUnderWay(is_done), first);
    }
    EXPECT_LE(looks, 2 * kActions);
    first = kActions;
    EXPECT_EQ(order.FirstUnderWay(is_done), plan::kNone);
    order.Rewind();
  }
}

// Starts what the core says, and says what it was.
class ExecutorCoreTest : public ::testing::Test {
 protected:
  explicit ExecutorCoreTest(const Job& job = Job({.replicas = 2}, {}))
      : program_(job.ProgramOf(0)), core_(program_) {}

  std::vector<std::string> Names(absl::Span<const int> actions) const {
    std::vector<std::string> names;
    for (const int action : actions) {
      const Action& a = program_.actions[action];
      const int bucket = plan::BucketOf(a);
      names.push_back(bucket == plan::kNone ? std::string(ToString(a.kind()))
                                            : absl::StrCat(ToString(a.kind()), " ", bucket));
    }
    return names;
  }
  int Find(ActionKind kind) const {
    int i = 0;
    while (program_.actions[i].kind() != kind) ++i;
    return i;
  }
  // Gradients of the parameters of a bucket.
  std::vector<std::string> Ready(int bucket) {
    std::vector<std::string> started;
    const plan::Bucket& b = program_.buckets[bucket];
    for (int p = b.first_parameter; p < b.end_parameter; ++p) {
      if (is_ready_.size() <= static_cast<size_t>(p)) is_ready_.resize(p + 1);
      if (is_ready_[p]) continue;
      is_ready_[p] = true;
      for (const std::string& name : Names(core_.Step(GradientReady{p}))) started.push_back(name);
    }
    return started;
  }
  // Takes the program as far as the backward pass.
  void BeginBackward() {
    core_.Begin();
    core_.Step(Done{Find(ActionKind::kForward)});
  }

  const Program program_;
  ExecutorCore core_;
  std::vector<bool> is_ready_;
};

TEST_F(ExecutorCoreTest, BeginsWithTheForwardPass) {
  EXPECT_THAT(Names(core_.Begin()), ElementsAre("FORWARD"));
}

TEST_F(ExecutorCoreTest, ComputesOneThingAtATimeWhileOthersTravel) {
  core_.Begin();
  EXPECT_THAT(Names(core_.Step(Done{Find(ActionKind::kForward)})), ElementsAre("LOSS", "BACKWARD"));
}

TEST_F(ExecutorCoreTest, StartsABucketWithItsLastGradient) {
  BeginBackward();
  const plan::Bucket& bucket = program_.buckets[0];
  for (int p = bucket.first_parameter; p + 1 < bucket.end_parameter; ++p) {
    EXPECT_THAT(core_.Step(GradientReady{p}), IsEmpty());
  }
  EXPECT_THAT(Names(core_.Step(GradientReady{bucket.end_parameter - 1})), ElementsAre("REDUCE 0"));
}

TEST_F(ExecutorCoreTest, HoldsACompleteBucketBackUntilThoseBeforeItHaveStarted) {
  BeginBackward();
  EXPECT_THAT(Ready(1), IsEmpty());
  EXPECT_THAT(Ready(0), ElementsAre("REDUCE 0", "REDUCE 1"));
}

TEST_F(ExecutorCoreTest, StartsWhatNoGradientCameForWithTheEndOfThePass) {
  BeginBackward();
  const auto started = Names(core_.Step(Done{Find(ActionKind::kBackward)}));
  EXPECT_EQ(started.size(), program_.buckets.size());
}

TEST_F(ExecutorCoreTest, NamesWhatHoldsUpTheNextThingToCompute) {
  BeginBackward();
  core_.Step(Done{Find(ActionKind::kBackward)});
  EXPECT_EQ(core_.HoldUp(), Find(ActionKind::kReduce));
}

TEST_F(ExecutorCoreTest, ForgetsAStepThatWasGivenUp) {
  BeginBackward();
  EXPECT_THAT(Names(core_.Begin()), ElementsAre("FORWARD"));
  EXPECT_FALSE(core_.IsFinished());
}

TEST(ExecutorCore, TakesGradientsOfEarlierMicroBatchesForPartsOnly) {
  const Program program = Job({.replicas = 2}, {.accumulation = 2}).ProgramOf(0);
  ExecutorCore core(program);
  core.Begin();
  core.Step(Done{0});
  for (int p = 0; p < 12; ++p) EXPECT_THAT(core.Step(GradientReady{p}), IsEmpty());
}

// Whatever ends first, and in whatever order gradients come, all ranks start the same sequence of
// collectives, and the step ends.
TEST(ExecutorCore, StartsTheSameSequenceForEveryOrderOfEvents) {
  const Rng rng(3, "executor_core_test");
  for (const bool sharded : {false, true}) {
    const Program program =
        Job({.replicas = 4}, {.accumulation = 2, .sharded = sharded}).ProgramOf(1);
    std::vector<int> expected;
    for (size_t i = 0; i < program.actions.size(); ++i) {
      if (plan::LaneOf(program.actions[i].kind()) != Lane::kCompute) expected.push_back(i);
    }
    for (int draw = 0; draw < 200; ++draw) {
      ExecutorCore core(program);
      std::vector<int> launched;
      std::vector<int> under_way;
      std::vector<int> gradients;
      uint64_t number = 0;
      const auto start = [&](absl::Span<const int> actions) {
        for (const int action : actions) {
          under_way.push_back(action);
          const ActionKind kind = program.actions[action].kind();
          if (plan::LaneOf(kind) != Lane::kCompute) launched.push_back(action);
          if (kind == ActionKind::kBackward) {
            gradients.resize(12);
            for (int p = 0; p < 12; ++p) gradients[p] = p;
          }
        }
      };
      start(core.Begin());
      while (!core.IsFinished()) {
        ASSERT_FALSE(under_way.empty());
        const size_t pick = rng.Below(under_way.size() + gradients.size(), draw, number++);
        if (pick < gradients.size()) {
          const int parameter = gradients[pick];
          gradients.erase(gradients.begin() + pick);
          start(core.Step(GradientReady{parameter}));
          continue;
        }
        const int action = under_way[pick - gradients.size()];
        under_way.erase(under_way.begin() + (pick - gradients.size()));
        if (program.actions[action].kind() == ActionKind::kBackward) gradients.clear();
        start(core.Step(Done{action}));
      }
      ASSERT_EQ(launched, expected);
    }
  }
}

// A pass that comes to sums: tensor ranks of two replicas.
class ExecutorSums : public ExecutorCoreTest {
 protected:
  ExecutorSums() : ExecutorCoreTest(Job({.replicas = 2, .tensor_ranks = 2}, {})) {}
};

TEST_F(ExecutorSums, BeginWhenThePassIsThereAndHoldItUp) {
  EXPECT_THAT(Names(core_.Begin()), ElementsAre("FORWARD"));
  EXPECT_TRUE(core_.ExpectsSum(4096));
  EXPECT_FALSE(core_.ExpectsSum(2048)) << "which is another";
  EXPECT_THAT(Names(core_.Step(SumEntered{})), ElementsAre("COMBINE"));
  const int sum = Find(ActionKind::kCombine);
  EXPECT_EQ(core_.UseHoldUp(), sum);
  core_.Step(Done{sum});
  EXPECT_EQ(core_.UseHoldUp(), plan::kNone);
  EXPECT_EQ(core_.WhatIs(3), ExecutorCore::Arrival::kSame) << "uses do not matter here";
}

TEST_F(ExecutorSums, EndWithThePass) {
  core_.Begin();
  for (; core_.ExpectsSum(4096); core_.Step(Done{core_.UseHoldUp()})) core_.Step(SumEntered{});
  core_.Step(Done{Find(ActionKind::kForward)});
  EXPECT_FALSE(core_.ExpectsSum(4096));
  EXPECT_TRUE(core_.ExpectsSum(2048)) << "of the backward pass";
}

// Reductions that are launched before a sum wait for their gradients, which never come before it.
TEST_F(ExecutorSums, NeverComeWhereGradientsComeInAnotherOrder) {
  core_.Begin();
  for (; core_.ExpectsSum(4096); core_.Step(Done{core_.UseHoldUp()})) core_.Step(SumEntered{});
  core_.Step(Done{Find(ActionKind::kForward)});
  int action = plan::kNone;
  while (action != ExecutorCore::kNever && core_.ExpectsSum(2048)) {
    core_.Step(SumEntered{});
    action = core_.UseHoldUp();
    if (action >= 0) core_.Step(Done{action});
    if (action >= 0 && core_.UseHoldUp() == ExecutorCore::kNever) action = ExecutorCore::kNever;
  }
  EXPECT_EQ(action, ExecutorCore::kNever);
}

}  // namespace
}  // namespace muster::engine

#include "worker_runtime/engine/step_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StatusIs;
using ::muster::testing::Under;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Running {
  Running(Communicator& world, const Plan& plan) : small(world, plan) {
    listeners.on_phase = [this](int64_t, Phase phase) { phases.push_back(phase); };
  }
  absl::Status Put(const PassForward& forward) {
    runner.Begin(MonoNow());
    small.rig().reduction->Begin();
    return runner.Put(forward);
  }
  absl::Status PutBatches() {
    MUSTER_RETURN_IF_ERROR(feed.Begin(*reader));
    return Put([&](Tape& tape, const plan::StagePass& pass, absl::Span<const Activation> received) {
      return small.Run(feed, *reader, tape, pass, received);
    });
  }

  SmallRig small;
  std::vector<Phase> phases;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  StepListeners listeners{.progress = progress};
  Updater updater{small.rig(), progress};
  BatchFeed feed{small.rig(), progress};
  std::unique_ptr<BatchReader> reader = small.Read();
  StepRunner runner{small.rig(), updater, listeners};
};

TEST(StepRunner, CarriesOutAStepAndTellsOfIt) {
  Alone([](Communicator& world) {
    Running on(world, SmallPlan(SumMode::kOrdered, 1));
    std::set<int64_t> steps;
    on.listeners.on_action = [&](const TimedAction& action) { steps.insert(action.step); };
    for (const int64_t step : {1, 2}) {
      on.phases.clear();
      ASSERT_THAT(on.PutBatches(), IsOk());
      EXPECT_TRUE(on.runner.is_in_step());
      ASSERT_THAT(on.runner.End(), IsOk());
      EXPECT_FALSE(on.runner.is_in_step());
      EXPECT_EQ(on.runner.result().step, step);
      EXPECT_GT(on.runner.result().loss, 0);
      EXPECT_GT(on.runner.result().times.total, on.runner.result().times.forward);
      EXPECT_THAT(on.phases,
                  ElementsAre(Phase::kForward, Phase::kBackward, Phase::kReduce, Phase::kUpdate));
    }
    EXPECT_THAT(steps, ElementsAre(1, 2)) << "all pieces of a step are of one number";
  });
}

TEST(StepRunner, LeavesTheStateWhereAStepFailsBeforeItsUpdates) {
  Alone([](Communicator& world) {
    Running on(world, SmallPlan(SumMode::kOrdered, 1));
    const absl::Status put =
        on.Put([](Tape&, const plan::StagePass&,
                  absl::Span<const Activation>) -> absl::StatusOr<StageOutput> {
          return absl::InternalError("no such token");
        });
    EXPECT_THAT(std::string(put.message()), HasSubstr("no such token"));
    EXPECT_FALSE(on.runner.Fail(put)) << "nothing was changed";
    EXPECT_FALSE(on.runner.is_in_step());
    EXPECT_EQ(on.progress.step, 0);
  });
}

// The model begins with its second half.
TEST(StepRunner, EndsAStepThatUsesAUnitWhereItDidNotBefore) {
  OnRanks<int>(2, [](Communicator& world) {
    Plan plan = Under("zero-3", SmallPlan(SumMode::kFast, 1), 2);
    plan.gathering.persistence_threshold = 0;
    Running on(world, plan);
    const auto& parameters = on.small.store.parameters();
    const Parameter& last = *parameters.back();
    const Parameter& block = **std::find_if(parameters.begin(), parameters.end(),
                                            [](const auto& p) { return p->unit() == 1; });
    const absl::Status put =
        on.Put([&](Tape&, const plan::StagePass&, absl::Span<const Activation>) {
          on.runner.Enter(last);
          EXPECT_EQ(last.value().shape(), last.shape());
          on.runner.Enter(block);
          EXPECT_EQ(block.value().shape(), block.shape()) << "there is memory whatever happens";
          return StageOutput{};
        });
    EXPECT_THAT(put, StatusIs(absl::StatusCode::kInternal));
    EXPECT_THAT(std::string(put.message()),
                HasSubstr("at a point where it did not when its order of use was found out"));
    EXPECT_FALSE(on.runner.Fail(put));
    return 0;
  });
}

}  // namespace
}  // namespace muster::engine

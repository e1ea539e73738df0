#include "worker_runtime/engine/stage_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::ActionsOf;
using ::muster::testing::Alone;
using ::muster::testing::IsOk;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

struct Passes {
  explicit Passes(Communicator& world) : small(world, SmallPlan(SumMode::kFast, 2)) {
    small.rig().reduction->Begin();
    EXPECT_THAT(feed.Begin(*reader), IsOk());
  }
  const plan::Pass& Pass(plan::ActionKind kind, int number) {
    const plan::Program& program = small.rig().program;
    return program.actions[ActionsOf(program, kind)[number]].As<plan::Pass>();
  }
  absl::Status Forward(int number, const absl::Status& use_error = absl::OkStatus()) {
    return passes.Forward(
        Pass(plan::ActionKind::kForward, number).of,
        [&](Tape& tape, const plan::StagePass& pass, absl::Span<const Activation> received) {
          return small.Run(feed, *reader, tape, pass, received);
        },
        use_error);
  }
  absl::Status Backward(int number) {
    return passes.Backward(
        Pass(plan::ActionKind::kBackward, number), [&](Tape&) { ++watched; }, absl::OkStatus());
  }

  SmallRig small;
  TrainingProgress progress{small.rig().plan.loss_scaling};
  Updater updater{small.rig(), progress};
  StagePasses passes{small.rig(), updater};
  BatchFeed feed{small.rig(), progress};
  std::unique_ptr<BatchReader> reader = small.Read();
  int watched = 0;
};

TEST(StagePasses, LeaveTheGradientsOfAllMicroBatchesAndTheirTokens) {
  Alone([](Communicator& world) {
    Passes on(world);
    on.small.FillGradients(1000);  // of an earlier step
    for (const int number : {0, 1}) {
      ASSERT_THAT(on.Forward(number), IsOk());
      const plan::Pass& backward = on.Pass(plan::ActionKind::kBackward, number);
      EXPECT_EQ(on.passes.IsLast(backward.of), number == 1);
      ASSERT_THAT(on.Backward(number), IsOk());
    }
    EXPECT_EQ(on.small.rig().reduction->tokens(), on.feed.TargetsThatCount());
    EXPECT_EQ(on.watched, 1) << "before the last backward pass";
    double largest = 0;
    for (const float g : on.small.store.parameters()[0]->gradient().span<float>()) {
      largest = std::max(largest, std::abs(static_cast<double>(g)));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LT(largest, 500) << "the first micro-batch begins anew";
  });
}

TEST(StagePasses, EndTheGroupsWhereTheModelFails) {
  Alone([](Communicator& world) {
    Passes on(world);
    const absl::Status end = on.passes.Forward(
        on.Pass(plan::ActionKind::kForward, 0).of,
        [](Tape&, const plan::StagePass&, absl::Span<const Activation>)
            -> absl::StatusOr<StageOutput> { return absl::InternalError("no such token"); },
        absl::OkStatus());
    EXPECT_THAT(std::string(end.message()), HasSubstr("no such token"));
    EXPECT_THAT(std::string(world.Barrier({}).Wait().message()),
                HasSubstr("rank 0: no such token"));
  });
}

TEST(StagePasses, EndWithWhatFailedWhileTheModelWentOn) {
  Alone([](Communicator& world) {
    Passes on(world);
    EXPECT_THAT(on.Forward(0, absl::AbortedError("the unit did not come")),
                StatusIs(absl::StatusCode::kAborted));
    EXPECT_EQ(on.small.rig().reduction->tokens()[0], 0) << "its loss counts nothing";
  });
}

}  // namespace
}  // namespace muster::engine

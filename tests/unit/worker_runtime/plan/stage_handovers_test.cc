#include "worker_runtime/plan/stage_handovers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Handing {
  Handing(Job the_job, int rank) : job(std::move(the_job)), of(job, rank) {
    of.draft.stage = planned.passes.front().order.pass.stage;
  }
  const std::vector<Action>& actions() const { return of.draft.program.actions; }
  const PlannedPass& Pass(PassKind kind) const {
    for (const PlannedPass& pass : planned.passes) {
      if (pass.kind() == kind) return pass;
    }
    ADD_FAILURE();
    return planned.passes.front();
  }

  const Job job;
  DraftOf of;
  const PlannedPasses planned = PlanPasses(of.draft);
  StageHandovers handovers{of.draft};
};

TEST(StageHandovers, AreAwaitedByThePassThatNeedsThem) {
  const Job job({.stages = 2, .replicas = 2}, {.accumulation = 2});
  Handing on(job, 3);
  const PlannedPass& forward = on.Pass(PassKind::kForward);
  on.handovers.AddReceives(forward);
  ASSERT_EQ(on.actions().size(), 1);
  const auto& receive = on.actions()[0].As<Transfer>();
  EXPECT_FALSE(receive.is_send);
  EXPECT_EQ(receive.place, 0);
  EXPECT_EQ(receive.bytes, job.stages[1].received_bytes);
  EXPECT_EQ(on.actions()[0].keeps_bytes, receive.bytes);
  Action action;
  on.handovers.AddNeeds(forward, action);
  EXPECT_THAT(action.after, ElementsAre(0));
}

TEST(StageHandovers, HaveLeftWhenTheirMicroBatchComesBack) {
  Handing on(Job({.stages = 2, .replicas = 2}, {.accumulation = 2}), 0);
  const PlannedPass& forward = on.Pass(PassKind::kForward);
  const int pass = on.of.draft.Add({.body = Pass{}});
  on.handovers.AddSends(forward, pass);
  ASSERT_EQ(on.actions().back().kind(), ActionKind::kSend);
  EXPECT_EQ(on.actions().back().As<Transfer>().place, 1);
  EXPECT_THAT(on.actions().back().after, ElementsAre(pass));
  const int send = static_cast<int>(on.actions().size()) - 1;
  Action backward;
  on.handovers.AwaitSent(on.Pass(PassKind::kBackward), backward);
  EXPECT_THAT(backward.after, ElementsAre(send));
}

TEST(StageHandovers, BringNewValuesOfWhatIsBorrowed) {
  const Job job({.stages = 2, .replicas = 1}, {.accumulation = 2, .tied = true});
  Handing lender(job, 0), borrower(job, 1);
  const int update = lender.of.draft.Add({.body = Update{}});
  lender.handovers.AddTiedValues({update}, kNone);
  const auto& send = lender.actions().back().As<Transfer>();
  EXPECT_TRUE(send.is_send);
  EXPECT_EQ(send.what.payload, Payload::kValue);
  EXPECT_THAT(lender.actions().back().after, ElementsAre(update));
  EXPECT_EQ(send.bytes, 1200 * 4);
  const int last = borrower.of.draft.Add({.body = Pass{}});
  borrower.handovers.AddTiedValues({}, last);
  EXPECT_FALSE(borrower.actions().back().As<Transfer>().is_send);
  EXPECT_THAT(borrower.actions().back().after, ElementsAre(last)) << "which reads the old ones";
}

TEST(StageHandovers, AreNoneOfOneStage) {
  Handing on(Job({.replicas = 2}, {}), 0);
  const PlannedPass& forward = on.Pass(PassKind::kForward);
  on.handovers.AddReceives(forward);
  on.handovers.AddSends(forward, 0);
  on.handovers.AddTiedValues({}, 0);
  EXPECT_THAT(on.actions(), IsEmpty());
}

}  // namespace
}  // namespace muster::plan

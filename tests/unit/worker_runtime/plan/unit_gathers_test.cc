#include "worker_runtime/plan/unit_gathers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/unit/worker_runtime/plan/programs.h"
#include "worker_runtime/plan/planned_passes.h"

namespace muster::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two ranks that shard all parameters and gather nothing ahead.
Job OneByOne() {
  Job job({.replicas = 2}, {.preset = "zero-3"});
  job.plan.gathering.persistence_threshold = 0;
  job.plan.gathering.prefetch_elements = 0;
  job.plan.gathering.max_live_elements = 1;
  job.plan.gathering.max_reuse_distance = 0;
  return job;
}

struct Gathered {
  explicit Gathered(Job the_job) : job(std::move(the_job)), of(job) {}

  ActionKind last() const { return of.draft.program.actions.back().kind(); }

  const Job job;
  DraftOf of;
  const PlannedPasses planned = PlanPasses(of.draft);
  UnitGathers gathers{of.draft, planned.uses};
};

TEST(UnitGathers, GatherAUnitForItsUseAndGiveItsPlaceToTheNext) {
  Gathered on(OneByOne());
  const std::vector<Action>& actions = on.of.draft.program.actions;
  on.gathers.Begin();
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(actions[0].As<Unshard>().place, 0);
  Entry first = {.unit = on.planned.uses[0].unit};
  on.gathers.AddTo(first);
  EXPECT_THAT(first.unshards, ElementsAre(0));

  on.gathers.ReleaseBefore(1, {.pass = 7, .entry = 1});
  ASSERT_EQ(on.last(), ActionKind::kReshard);
  const int reshard = static_cast<int>(actions.size()) - 1;
  EXPECT_EQ(actions[reshard].As<Reshard>().unshard, 0);
  EXPECT_EQ(actions[reshard].at, (Point{.pass = 7, .entry = 1}));
  Entry gone = {.unit = on.planned.uses[0].unit};
  on.gathers.AddTo(gone);
  EXPECT_THAT(gone.unshards, IsEmpty());

  on.gathers.GatherBefore(1, {.pass = 7, .entry = 1});
  ASSERT_EQ(on.last(), ActionKind::kUnshard);
  EXPECT_EQ(actions.back().As<Unshard>().place, 0);
  EXPECT_THAT(actions.back().after, Contains(reshard)) << "who gives the place up";
  on.gathers.Finish();
  EXPECT_GT(on.of.draft.program.gathered_blocks[false], 0);
}

TEST(UnitGathers, DoNothingWhereParametersAreWhole) {
  Gathered on(Job({.replicas = 2}, {.preset = "zero-2"}));
  on.gathers.Begin();
  on.gathers.GatherBefore(1, {.pass = 0, .entry = 1});
  on.gathers.ReleaseAfter(0, on.planned.uses.size());
  on.gathers.Finish();
  EXPECT_THAT(on.of.draft.program.actions, IsEmpty());
  EXPECT_EQ(on.of.draft.program.gathered_blocks[false], 0);
}

}  // namespace
}  // namespace muster::plan

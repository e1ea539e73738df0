#include "worker_runtime/plan/gradient_reductions.h"

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

struct Reduced {
  explicit Reduced(Job the_job) : job(std::move(the_job)), of(job) {}
  const std::vector<Action>& actions() const { return of.draft.program.actions; }

  const Job job;
  DraftOf of;
  const PlannedPasses planned = PlanPasses(of.draft);
  GradientReductions reductions{of.draft, planned.uses};
};

TEST(GradientReductions, AreOnePerBucketOfAStageAndFollowTheirGradients) {
  Reduced on(Job({.replicas = 2}, {.accumulation = 2}));
  on.of.draft.Add({.body = Pass{.of = {PassKind::kBackward}}});
  on.reductions.OnBackward(0);
  on.reductions.ReduceStage();
  ASSERT_EQ(on.reductions.added().size(), on.of.draft.program.buckets.size());
  for (const int added : on.reductions.added()) {
    const auto& reduce = on.actions()[added].As<Reduce>();
    EXPECT_EQ(reduce.exchange.collective, Collective::kAllReduce);
    EXPECT_EQ(reduce.backward, 0);
    EXPECT_THAT(on.actions()[added].after, IsEmpty());
  }
}

TEST(GradientReductions, WaitForTheWholePassWithoutOverlap) {
  Reduced on(Job({.replicas = 2}, {.overlap = false}));
  on.of.draft.Add({.body = Pass{.of = {PassKind::kBackward}}});
  on.reductions.OnBackward(0);
  on.reductions.ReduceStage();
  EXPECT_THAT(on.actions().back().after, ElementsAre(0));
  EXPECT_EQ(on.actions().back().As<Reduce>().backward, kNone);
}

TEST(GradientReductions, AreNoneOfOneRank) {
  Reduced on(Job({.replicas = 1}, {}));
  on.reductions.ReduceStage();
  EXPECT_THAT(on.reductions.added(), IsEmpty());
}

// Streamed gradients lie in an arena from their first use until their reduction.
TEST(GradientReductions, TakeThePlaceOfTheOneBeforeTheLast) {
  Job job({.replicas = 2}, {.preset = "zero-3"});
  job.plan.gathering.persistence_threshold = 0;
  Reduced on(job);
  ASSERT_TRUE(on.of.draft.program.streams_gradients);
  const PlannedPass& backward = on.planned.passes[1];
  const int pass = on.of.draft.Add({.body = Pass{.of = {PassKind::kBackward}}});
  std::vector<Entry> entries;
  for (size_t use = backward.first_use; use < backward.end_use; ++use) {
    const Point at = {.pass = pass, .entry = static_cast<int>(use - backward.first_use)};
    on.reductions.ReduceWhatIsComplete(backward, use, at);
    entries.push_back({.unit = on.planned.uses[use].unit});
    on.reductions.Begin(entries.back());
  }
  on.reductions.ReduceWhatIsComplete(backward, backward.end_use, {.pass = pass, .entry = kNone});
  EXPECT_EQ(on.reductions.added().size(), LearnedBuckets(on.of.draft.program).size());
  // The head comes first and last: its unit keeps its place all the while.
  EXPECT_EQ(entries.front().place, 0);
  EXPECT_EQ(entries.back().place, kNone);
  const int first = on.reductions.added().front();
  EXPECT_THAT(entries[3].waits, Contains(first));
  EXPECT_EQ(entries[3].place, on.actions()[first].As<Reduce>().place);
  on.reductions.Finish();
  EXPECT_GT(on.of.draft.program.unreduced_blocks, 0);
}

}  // namespace
}  // namespace muster::plan

#include "worker_runtime/plan/planned_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> UnitsOf(const PlannedPasses& planned, size_t pass) {
  std::vector<int> units;
  for (size_t u = planned.passes[pass].first_use; u < planned.passes[pass].end_use; ++u) {
    units.push_back(planned.uses[u].unit);
  }
  return units;
}

TEST(PlannedPasses, ComeToUnitsInTheOrderOfTheTrace) {
  const Job job({.replicas = 2}, {.preset = "zero-3"});
  DraftOf of(job);
  const PlannedPasses planned = PlanPasses(of.draft);
  ASSERT_EQ(planned.passes.size(), 2);
  EXPECT_THAT(UnitsOf(planned, 0), ElementsAre(0, 1, 2, 3, 4, 5, 0));
  EXPECT_THAT(UnitsOf(planned, 1), ElementsAre(0, 5, 4, 3, 2, 1, 0));
  EXPECT_TRUE(planned.passes[1].writes_gradients());
}

TEST(PlannedPasses, HaveNoUsesWhereNothingWaitsForThem) {
  const Job job({.replicas = 2}, {.accumulation = 3});
  DraftOf of(job);
  const PlannedPasses planned = PlanPasses(of.draft);
  EXPECT_EQ(planned.passes.size(), 6);
  EXPECT_THAT(planned.uses, IsEmpty());
}

// The last stage has found a gradient for the first unit, which is written before any other.
TEST(PlannedPasses, BeginWithWhatAnotherStageHasBorrowed) {
  const Job job({.stages = 2, .replicas = 2},
                {.accumulation = 2, .tied = true, .preset = "zero-2"});
  DraftOf of(job);
  const PlannedPasses planned = PlanPasses(of.draft);
  const std::vector<TiedStages> tied = TiedOf(of.draft);
  ASSERT_EQ(tied.size(), 1);
  EXPECT_EQ(tied[0].borrower, 1);
  EXPECT_EQ(tied[0].lender, 0);
  for (size_t p = 0; p < planned.passes.size(); ++p) {
    const PlannedPass& pass = planned.passes[p];
    if (!pass.writes_gradients()) continue;
    const bool is_last = pass.micro_batch() == 1;
    EXPECT_EQ(UnitsOf(planned, p).front(), is_last ? 0 : 2) << "micro-batch " << pass.micro_batch();
  }
}

}  // namespace
}  // namespace muster::plan

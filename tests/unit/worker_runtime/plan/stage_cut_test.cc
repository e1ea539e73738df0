#include "worker_runtime/plan/stage_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster::plan {
namespace {

using ::testing::ElementsAre;

TEST(CutIntoStages, GivesEveryStageAlikeMuch) {
  EXPECT_THAT(CutIntoStages({{1, 1, 1, 1}}, 2), ElementsAre(0, 2));
  EXPECT_THAT(CutIntoStages({{0, 5, 5, 5, 5, 1}}, 2), ElementsAre(0, 3));
  EXPECT_THAT(CutIntoStages({{9, 1, 1, 1, 1, 5}}, 3), ElementsAre(0, 1, 5));
}

TEST(CutIntoStages, GivesEveryStageAUnit) {
  EXPECT_THAT(CutIntoStages({{0, 0, 7}}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(CutIntoStages(std::vector<double>{3}, 1), ElementsAre(0));
}

TEST(CutIntoStages, LeavesTheEarlierStagesMoreWhereItIsTheSame) {
  EXPECT_THAT(CutIntoStages({{2, 2, 2}}, 2), ElementsAre(0, 2));
}

}  // namespace
}  // namespace muster::plan

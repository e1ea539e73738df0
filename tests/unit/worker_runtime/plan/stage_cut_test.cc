#include "worker_runtime/plan/stage_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

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

const std::vector<std::string> kUnits = {"embedding", "h.0", "h.1", "h.10", "head"};

TEST(CostsOfUnits, AreTheFirstThatFitEachOrTheProducts) {
  EXPECT_THAT(CostsOfUnits({}, kUnits, {0, 5, 5, 5, 9}), IsOkAndHolds(ElementsAre(0, 5, 5, 5, 9)));
  EXPECT_THAT(CostsOfUnits({{{"h.10", 7}, {"h.*", 3}, {"*", 0.5}}}, kUnits, {0, 5, 5, 5, 9}),
              IsOkAndHolds(ElementsAre(0.5, 3, 3, 7, 0.5)));
}

TEST(CostsOfUnits, NameTheUnitOrTheCostThatIsAlone) {
  EXPECT_THAT(CostsOfUnits({{{"h.*", 3}, {"head", 1}}}, kUnits, {0, 0, 0, 0, 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no cost for unit embedding; add embedding:COST, or *:COST")));
  EXPECT_THAT(CostsOfUnits({{{"*", 3}, {"haed", 1}}}, kUnits, {0, 0, 0, 0, 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'haed' fits no unit of the model, which has embedding to head; "
                                 "did you mean head?")));
}

TEST(ListCosts, GivesEachUnitItsCostWithAsFewPatternsAsFit) {
  EXPECT_THAT(ListCosts(kUnits, {{0.5, 3, 3, 3, 7}}),
              ElementsAre(UnitCost{"embedding", 0.5}, UnitCost{"h.*", 3}, UnitCost{"head", 7}));
  // "h*" would be the second, too.
  EXPECT_THAT(ListCosts(kUnits, {{0.5, 3, 4, 4, 4}}),
              ElementsAre(UnitCost{"embedding", 0.5}, UnitCost{"h.0", 3}, UnitCost{"h.1", 4},
                          UnitCost{"h.10", 4}, UnitCost{"head", 4}));
  for (const std::vector<double>& costs :
       {std::vector<double>{1, 1, 1, 1, 1}, {1, 2, 2, 1, 1}, {2, 1, 1, 2, 2}, {1, 2, 3, 4, 5}}) {
    EXPECT_THAT(CostsOfUnits(ListCosts(kUnits, costs), kUnits, {}),
                IsOkAndHolds(ElementsAreArray(costs)));
  }
}

}  // namespace
}  // namespace muster::plan

#include "worker_runtime/plan/choose_reduction.h"

#include <gtest/gtest.h>

namespace muster::plan {
namespace {

constexpr GradientReduction kEach = GradientReduction::kEachMicroBatch;
constexpr GradientReduction kOnce = GradientReduction::kOnce;

TEST(ChooseReduction, NeverTakesWhatIsDominatedWhateverTheLimit) {
  const ReductionCost better = {.memory_bytes = 100, .sent_bytes = 10};
  const ReductionCost worse = {.memory_bytes = 110, .sent_bytes = 40};
  for (const int64_t limit : {0, 1, 100, 105, 1000}) {
    EXPECT_EQ(ChooseReduction(worse, better, limit).chosen, kOnce) << limit;
    EXPECT_EQ(ChooseReduction(better, worse, limit).chosen, kEach) << limit;
  }
}

TEST(ChooseReduction, SendsLessWhereThatTakesAtMostHalfAsMuchMemoryAgain) {
  const ReductionCost each = {.memory_bytes = 100, .sent_bytes = 80};
  EXPECT_EQ(ChooseReduction(each, {.memory_bytes = 150, .sent_bytes = 10}, 0).chosen, kOnce);
  EXPECT_EQ(ChooseReduction(each, {.memory_bytes = 151, .sent_bytes = 10}, 0).chosen, kEach);
}

TEST(ChooseReduction, LetsTheLimitDecideOnlyWhatFits) {
  const ReductionCost each = {.memory_bytes = 100, .sent_bytes = 80};
  const ReductionCost once = {.memory_bytes = 150, .sent_bytes = 10};
  EXPECT_EQ(ChooseReduction(each, once, 150).chosen, kOnce);
  EXPECT_EQ(ChooseReduction(each, once, 1000).chosen, kOnce);
  EXPECT_EQ(ChooseReduction(each, once, 149).chosen, kEach);
  EXPECT_EQ(ChooseReduction(each, once, 99).chosen, kOnce) << "neither fits: as without a limit";
  const ReductionCost large = {.memory_bytes = 400, .sent_bytes = 10};
  EXPECT_EQ(ChooseReduction(each, large, 1000).chosen, kEach)
      << "more memory changes nothing where both fit";
}

}  // namespace
}  // namespace muster::plan

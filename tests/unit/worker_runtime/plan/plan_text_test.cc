#include "worker_runtime/plan/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster::plan {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CanonicalText, IsThePlanLineByLineAndThenTheParameters) {
  const std::vector<ParameterInfo> parameters = {{.name = "wte.weight", .shape = {256, 384}},
                                                 {.name = "ln_f.bias", .shape = {384}}};
  const std::string text = CanonicalText(Plan(), parameters);
  EXPECT_THAT(text, StartsWith("preset=ddp\nparameters.placement=replicate\n"));
  EXPECT_THAT(text, HasSubstr("\naccumulation=1\n"));
  EXPECT_THAT(text, EndsWith("\nwte.weight [256, 384] f32\nln_f.bias [384] f32\n"));
}

TEST(CanonicalText, DiffersWithTheTypeOfTheParameters) {
  const std::vector<ParameterInfo> f32 = {{.name = "x", .shape = {1}}};
  const std::vector<ParameterInfo> f64 = {{.name = "x", .shape = {1}, .dtype = DType::kF64}};
  EXPECT_NE(CanonicalText(Plan(), f32), CanonicalText(Plan(), f64));
}

}  // namespace
}  // namespace muster::plan

#include "proto/base/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(EnvironmentOf, TakesNamesAndValuesApartAtTheFirstEqualsSign) {
  const char* const entries[] = {"A=1", "B=", "C=x=y", "odd", "A=2", nullptr};
  EXPECT_EQ(EnvironmentOf(entries), (EnvironmentMap{{"A", "1"}, {"B", ""}, {"C", "x=y"}}));
  EXPECT_TRUE(EnvironmentOf(nullptr).empty());
}

TEST(FindVariable, TellsEmptyFromUnset) {
  const EnvironmentMap environment = {{"B", ""}};
  ASSERT_NE(FindVariable(environment, "B"), nullptr);
  EXPECT_EQ(FindVariable(environment, "A"), nullptr);
  EXPECT_EQ(VariableOrEmpty(environment, "A"), "");
}

}  // namespace
}  // namespace muster

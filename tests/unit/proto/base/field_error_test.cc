#include "proto/base/field_error.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(FieldError, NamesItsFieldInTheMessageAndAsData) {
  const absl::Status error = FieldError("stages", " must be 1 or more, not 0");
  EXPECT_TRUE(absl::IsInvalidArgument(error));
  EXPECT_EQ(error.message(), "stages must be 1 or more, not 0");
  EXPECT_EQ(FieldOf(error), "stages");
  EXPECT_TRUE(absl::IsUnimplemented(FieldError("x", ": y", absl::StatusCode::kUnimplemented)));
}

TEST(FieldOf, IsEmptyWithoutOne) {
  EXPECT_EQ(FieldOf(absl::OkStatus()), "");
  EXPECT_EQ(FieldOf(absl::InvalidArgumentError("stages must be 1 or more")), "");
}

TEST(WithBeginning, KeepsCodeAndFieldAndIsTakenBack) {
  const absl::Status error = FieldError("stages", ": too many", absl::StatusCode::kUnimplemented);
  const absl::Status longer = WithBeginning("plan: ", error);
  EXPECT_TRUE(absl::IsUnimplemented(longer));
  EXPECT_EQ(longer.message(), "plan: stages: too many");
  EXPECT_EQ(FieldOf(longer), "stages");
  EXPECT_EQ(WithoutBeginning("plan: ", longer), error);
  EXPECT_EQ(WithoutBeginning("plan: ", error), error);
  EXPECT_TRUE(WithBeginning("plan: ", absl::OkStatus()).ok());
}

}  // namespace
}  // namespace muster

#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StatusMatchers, TellAnErrorFromSuccess) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::AbortedError("stale round"), Not(IsOk()));
}

TEST(StatusMatchers, CompareCodeAndMessage) {
  const absl::StatusOr<int> result = absl::InvalidArgumentError("--nnodes=x is no number");
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--nnodes")));
  EXPECT_THAT(result, Not(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--role"))));
  EXPECT_THAT(result, Not(StatusIs(absl::StatusCode::kAborted)));
}

TEST(StatusMatchers, LookAtTheValue) {
  EXPECT_THAT(absl::StatusOr<int>(80), IsOkAndHolds(80));
  EXPECT_THAT(absl::StatusOr<int>(80), Not(IsOkAndHolds(81)));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("no port")), Not(IsOkAndHolds(80)));
}

}  // namespace
}  // namespace muster::testing

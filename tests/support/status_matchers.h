// Matchers for absl::Status and absl::StatusOr (this Abseil has none).
//
//   EXPECT_THAT(spec.Validate(), IsOk());
//   EXPECT_THAT(ParseFlags(args, {}), StatusIs(absl::StatusCode::kInvalidArgument,
//   HasSubstr("--nnodes"))); EXPECT_THAT(ParsePort("80"), IsOkAndHolds(80));
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is ok") {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

MATCHER_P(HasStatusCode, code, "has code " + absl::StatusCodeToString(code)) {
  *result_listener << "which is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}

MATCHER_P2(StatusIs, code, message_matcher,
           "has code " + absl::StatusCodeToString(code) + " and a fitting message") {
  *result_listener << "which is " << StatusOf(arg).ToString() << " ";
  return StatusOf(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(StatusOf(arg).message()),
                                       result_listener);
}

inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ::testing::_); }

MATCHER_P(IsOkAndHolds, value_matcher, "is ok and holds a fitting value") {
  if (!arg.ok()) {
    *result_listener << "which is " << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(value_matcher, *arg, result_listener);
}

}  // namespace muster::testing

// Values of the options of plan_options.h: text -> plain values. Ranges are Validate's.
//
// Errors:  kInvalidArgument saying what was expected; kUnimplemented: known, but not in this
//          version.
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"
#include "muster/plan.h"

namespace muster::plan {

// `status`, if it is an error, with the option in front: "--lr=fast: expected a number".
absl::Status AtOption(absl::string_view name, absl::string_view value, const absl::Status& status);

absl::Status ReadInteger(absl::string_view text, int64_t& out);
absl::Status ReadSeed(absl::string_view text, uint64_t& out);
absl::Status ReadNumber(absl::string_view text, double& out);
absl::Status ReadMode(absl::string_view text, SumMode& out);
absl::Status ReadSchedule(absl::string_view text, LearningRateSchedule::Kind& out);
// "f32", and what other programs call it.
absl::Status ReadDType(absl::string_view text, DType& out);
absl::Status CheckDevice(absl::string_view text);
// MiB, fractions too, as bytes.
absl::Status ReadMebibytes(absl::string_view text, int64_t& out_bytes);

}  // namespace muster::plan

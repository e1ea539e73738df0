// Errors of one field of a value that was checked: "stages must be between 0 and 65536, not -1".
// The message begins with the field, and the status carries it as data besides, for who knows where
// the field's value came from (command_line::InWordsOf). A status that is made anew of code and
// message has no field any more; absl::Status::ToString shows it behind the message.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace muster {

// "<field><rest>". `field` is what the checked value calls it ("learning_rate.peak"), or an option
// ("--nnodes") where the whole value is one that options alone fill.
absl::Status FieldError(absl::string_view field, absl::string_view rest,
                        absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// The field that `status` carries; empty if it carries none.
std::string FieldOf(const absl::Status& status);

// `status` with `beginning` in front of its message, or without it there. Code and field stay.
absl::Status WithBeginning(absl::string_view beginning, const absl::Status& status);
absl::Status WithoutBeginning(absl::string_view beginning, const absl::Status& status);

}  // namespace muster

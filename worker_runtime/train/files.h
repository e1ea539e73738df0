// What muster-train reads and where it writes, looked at before there is anything to lose.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::train {

// Text that most machines have, for a first run without any data.
inline constexpr char kDefaultTexts[] = "/usr/share/common-licenses";

// The regular files of `directory` by name. Links are left out: here they are second names of
// others, and each text shall count once.
//
// Errors: kNotFound: there are none (says to give --data).
absl::StatusOr<std::vector<std::string>> DefaultTexts(const std::string& directory = kDefaultTexts);

// Makes `directory` with its parents where it is missing, and sees whether files may be made in it:
// found out now, a wrong name costs nothing; at the end it would cost the training.
//
// Errors: kInvalidArgument: it, or a parent, is a file; kPermissionDenied; kFailedPrecondition:
//         anything else that the file system says.
absl::Status PrepareSaveDirectory(const std::string& directory);

}  // namespace muster::train

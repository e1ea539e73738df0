// The place of checkpoints, before there is anything to lose.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster::train {

// Makes `directory` with its parents where it is missing, and sees whether files may be made in it:
// found out now, a wrong name costs nothing; at the end it would cost the training.
//
// Errors: kInvalidArgument: it, or a parent, is a file; kPermissionDenied; kFailedPrecondition:
//         anything else that the file system says.
absl::Status PrepareSaveDirectory(const std::string& directory);

}  // namespace muster::train

// `muster plan`: what a training job will do and need, without running it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::launcher {

// The text of `muster plan` with `args` behind it: the page, or the help.
//
// Errors:  kInvalidArgument, kUnimplemented: one sentence that names the flag.
// Threads: pure.
absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args);

// Prints it. Returns the exit code: 0, or 2 (DESIGN section 4) with the sentence on stderr.
int PlanCommand(const std::vector<std::string>& args);

}  // namespace muster::launcher

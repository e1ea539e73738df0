// Whether the first word of a command line that is no subcommand may be a script or a program.
//
// A mistyped subcommand, or one of another version, would otherwise be looked up on PATH and
// started as a worker: `muster top` would be /usr/bin/top.
//
// Threads: pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace muster::launcher {

// `subcommands`: of this version. `is_here`: whether a file of that name lies in the current
// directory or beside our own binary.
//
// Errors: kInvalidArgument with the nearest subcommand and the line that runs a program of that
// name.
absl::Status CheckFirstWord(const std::string& word, const std::vector<std::string>& subcommands,
                            const std::function<bool(const std::string&)>& is_here);

}  // namespace muster::launcher

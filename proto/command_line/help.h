// What a table of options is printed as.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/command_line/command_line.h"

namespace muster::command_line {

// The text of --help: usage, the options under their headings, footer.
std::string HelpText(const Grammar& grammar);

// Commands after which `shell` (bash, zsh, fish or tcsh) completes the options of the program.
//
// Errors: kInvalidArgument: another shell.
absl::StatusOr<std::string> CompletionText(const Grammar& grammar, const std::string& shell);

}  // namespace muster::command_line

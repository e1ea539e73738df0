// Reads a command line into a CLI11 application the way every program of this project does it.
//
// Every option is spelled with underscores or with dashes; nothing is abbreviated; `--name=value`
// and `--name value` are the same.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace muster::plan {

// The names that CLI11 shall know option `name` by: "--batch_size,--batch-size" of "batch_size".
std::string Spellings(absl::string_view name);

// What --help prints around the options.
struct HelpText {
  std::string usage;   // lines before them
  std::string footer;  // lines after them
};
// Gives `app` this project's layout of help: "--name=VALUE   what it does".
void SetHelpText(CLI::App& app, HelpText text);

// Parses `args` (without the program's name). `app` has no help flag of CLI11's own
// (app.set_help_flag("")), since that would throw; an ordinary flag --help does instead.
//
// Errors: kInvalidArgument, in one sentence: an unknown option (with the nearest spelling), an
//         option without its value, an argument that belongs to no option.
absl::Status ParseArguments(CLI::App& app, const std::vector<std::string>& args);

}  // namespace muster::plan

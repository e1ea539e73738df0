// The grammar of `muster run`: which options there are, how they are spelled, and where the script
// begins. Everything about CLI11 is in command_line.cc; what values mean is flags.cc's.
//
// Options end at the first positional or at `--`; nothing after that is looked at. Every option is
// spelled with underscores or with dashes; nothing is abbreviated; a repeated option's last value
// wins; `--name=value` and `--name value` are the same.
//
// Threads: pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/spec/worker_env.h"

namespace muster::launcher {

struct Option {
  std::string name;        // "nproc_per_node"
  std::string value_name;  // "N"; empty for a flag
  std::string group;       // heading in the help
  std::string help;
  std::vector<std::string> environment =
      {};  // read if the option is absent; the first that is set and not empty wins
  char short_name = 0;
};

// All of them, in the order of the help.
const std::vector<Option>& RunOptions();

// One value as it was given. Of a flag: "1" or "0".
struct GivenValue {
  std::string text;
  std::string source;  // "--nproc_per_node" or "PET_NPROC_PER_NODE", for messages
  friend bool operator==(const GivenValue&, const GivenValue&) = default;
};

struct CommandLine {
  std::map<std::string, GivenValue>
      values;                        // by Option::name; the command line, else the environment
  std::vector<std::string> program;  // script and its arguments, byte for byte

  // nullptr if the option was not given.
  const GivenValue* Find(absl::string_view name) const;
  bool IsOn(absl::string_view flag) const;
};

// Errors: kInvalidArgument naming the option: unknown (with the nearest spelling), without its
// value, a flag with a value, a variable of a flag that is neither 0 nor 1.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& args,
                                            const EnvironmentMap& environment);

// The text of --help.
std::string HelpText();

}  // namespace muster::launcher

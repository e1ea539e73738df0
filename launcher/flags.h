// Command line and PET_* environment -> JobSpec. The complete grammar of torchrun (reference
// launcher 1) and the names of DESIGN section 4. Pure: arguments and environment come in as values.
//
// The way of one value: command_line.h splits the arguments, flag_values.h reads the text, flags.cc
// puts it into the JobSpec, JobSpec::Validate checks ranges and combinations.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/spec/job_spec.h"
#include "proto/spec/worker_env.h"

namespace muster::launcher {

// What a command line asks for besides running: text to print on stdout, exit code 0.
struct PrintAndExit {
  std::string text;
};

// How our own lines are written.
struct OutputFlags {
  std::string log_format = "text";  // or json
  std::string log_level = "info";   // debug, info, warning, error
  std::string event_log_file;       // reserved; empty
};

struct RunFlags {
  JobSpec spec;
  OutputFlags output;
  std::vector<std::string>
      warnings;  // accepted, but worth a line (e.g. an option that --standalone overrules)
};

// `args` without the program's name and without a leading `run`. Options end at the first
// positional; nothing is abbreviated. Precedence: command line, then PET_<NAME>, then default; an
// empty variable counts as unset. `fresh_run_id` is the random id that --standalone gives to the
// job (empty: it stays the default).
//
// The spec is validated. Its endpoint is empty when a job on one node needs none; with several
// nodes it always has host and port. A static job always has a node rank.
//
// Errors: kInvalidArgument naming the flag (or variable), the value, what was expected and, for an
// unknown option, the nearest spelling.
absl::StatusOr<std::variant<RunFlags, PrintAndExit>> ParseFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& fresh_run_id = "");

}  // namespace muster::launcher

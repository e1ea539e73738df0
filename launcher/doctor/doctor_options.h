// The command line of `muster doctor`.
//
// Threads: pure.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/line/flags.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct DoctorFlags {
  bool as_json = false;
  // The line of `muster run` that runs this on every host of --hostfile; empty: this node alone.
  std::vector<std::string> run_line;
  std::vector<std::string> warnings;
};

// `binary`: path of our own program, for the hosts.
//
// Errors: kInvalidArgument naming the option and what was expected.
absl::StatusOr<std::variant<DoctorFlags, PrintAndExit>> ParseDoctorFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& binary);

}  // namespace muster::launcher

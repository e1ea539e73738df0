// The command line of `muster bench scaling`.
//
// Threads: pure.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/line/flags.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct ScalingFlags {
  std::vector<int> ranks;  // ascending; empty: 1, 2, 4 and so on, up to what the node has
  absl::Duration seconds = absl::Seconds(20);  // to measure at each number of ranks
  absl::Duration timeout = absl::Minutes(10);  // for the first step, and for each further one
  bool global_batch = false;
  std::vector<std::string> run_line;  // options of `muster run`, the program and its arguments
  std::vector<std::string> warnings;
};

// `args` begin with "scaling".
//
// Errors: kInvalidArgument: one sentence that names the option.
absl::StatusOr<std::variant<ScalingFlags, PrintAndExit>> ParseScalingFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment);

// 1, 2, 4 and so on up to `most`, and `most` itself.
std::vector<int> UsualRanks(int most);

}  // namespace muster::launcher

// `muster plan`: what a training job will do and need, without running it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"
#include "worker_runtime/options/config_files.h"

namespace muster::launcher {

// Besides the arguments.
struct PlanSurroundings {
  EnvironmentMap environment;
  plan::ConfigView files;
};

// The text of `muster plan` with `args` behind it: the page, or the help. `warnings` gets a line
// for what was accepted but is worth one.
//
// Errors:  kInvalidArgument, kUnimplemented: one sentence that names the flag.
// Threads: pure.
absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args,
                                            std::vector<std::string>* warnings = nullptr,
                                            const PlanSurroundings& surroundings = {});

}  // namespace muster::launcher

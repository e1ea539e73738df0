// The command lines of `muster stop` and `muster drain NODE`: what is asked for, and of whom.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/line/flags.h"
#include "launcher/line/run_options.h"
#include "proto/base/endpoint.h"
#include "proto/base/environment.h"
#include "proto/base/stop_request.h"

namespace muster::launcher {

struct StopFlags {
  StopRequest request;
  std::optional<Endpoint> endpoint;  // with a port; none: by the sockets of this node's agents
  std::string run_id;                // empty: none was given
  bool tls = true;
  bool authentication = true;
  absl::Duration patience = kReachPatience;  // for the server to answer
  std::vector<std::string> warnings;
};

enum class StopCommandKind { kStop, kDrain };

// The options by which a job is found are those of `muster run`, with their variables. `stop` takes
// the job's id as a word too, as `muster status` does; options may follow words.
//
// Errors: kInvalidArgument: one sentence that names the option.
absl::StatusOr<std::variant<StopFlags, PrintAndExit>> ParseStopFlags(
    StopCommandKind kind, const std::vector<std::string>& args, const EnvironmentMap& environment);

}  // namespace muster::launcher

// The command lines of `muster status`, `stacks`, `logs` and `top`: which job is looked at, by
// which way, and what of it. Those of `stop` and `drain NODE`: what is asked of whom. The options
// by which a job is found are those of `muster run`, with their variables; options may follow
// words.
//
// Threads: pure.
#pragma once

#include <cstdint>
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

enum class SightKind { kStatus, kStacks, kLogs, kTop, kStop, kDrain };

// How a job is reached.
struct SightWay {
  std::string job;                   // run id; empty: none was given
  std::optional<Endpoint> endpoint;  // with a port; none: by the sockets of this node's agents
  bool tls = true;
  bool authentication = true;
  absl::Duration patience = kReachPatience;  // for the rendezvous to be reached
};

// Options of `muster logs` alone.
struct LogFlags {
  int64_t tail_lines = 20;  // -1: all
  bool follow = false;
  bool first_error = false;
  bool merge = false;
};

struct SightFlags {
  SightWay way;
  bool json = false;
  std::optional<int> rank;  // none: all
  LogFlags logs;
  StopRequest request;  // of `stop` and `drain`
  std::vector<std::string> warnings;
};

// Errors: kInvalidArgument: one sentence that names the option.
absl::StatusOr<std::variant<SightFlags, PrintAndExit>> ParseSightFlags(
    SightKind kind, const std::vector<std::string>& args, const EnvironmentMap& environment);

// "muster status".
std::string ProgramOf(SightKind kind);

}  // namespace muster::launcher

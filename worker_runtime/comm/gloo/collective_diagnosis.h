// Why a collective did not end, from what the other ranks say of themselves.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

struct StuckCollective {
  Operation operation;
  std::string group;
  int rank = 0;
  int size = 1;
  absl::Duration timeout;
};

// Asks all ranks, for a second at most, and names those who called something else, else those who
// have not come, else says that all have. `status` is what was seen here: where it is
// kInvalidArgument and the ranks agree, it is the reason.
absl::Status DiagnoseCollective(ControlChannel& control, const StuckCollective& stuck,
                                const absl::Status& status);

// The ranks' disagreement on `stuck`, if there is one.
std::optional<absl::Status> FindMismatch(ControlChannel& control, const StuckCollective& stuck);

}  // namespace muster::comm

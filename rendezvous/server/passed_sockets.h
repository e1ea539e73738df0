// Listening sockets that a service manager passes to the program that it starts: LISTEN_FDS of them
// from descriptor 3 on, for the process LISTEN_PID. Source: sd_listen_fds(3).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"
#include "proto/io/unique_fd.h"

namespace muster::rendezvous {

// Takes over those of this process; none if they are another's. At most once.
//
// Errors: kInvalidArgument: LISTEN_FDS is not a number, or what was passed is not a TCP socket that
//         listens.
absl::StatusOr<std::vector<UniqueFd>> TakePassedSockets(const EnvironmentMap& environment);

}  // namespace muster::rendezvous

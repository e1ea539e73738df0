// The address to listen at, as an option says it.
//
// Errors:  kInvalidArgument saying what was expected.
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/endpoint.h"

namespace muster::command_line {

// A port, on this machine alone ("9400" is 127.0.0.1:9400), or an address and a port
// ("0.0.0.0:9400", "[::]:9400"). Port 0 is any that is free.
absl::StatusOr<Endpoint> ParseListenAddress(const std::string& text);

}  // namespace muster::command_line

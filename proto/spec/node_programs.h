// Programs of the user's that run on each node beside the workers. Part of JobSpec, which checks
// them.
//
// Plain values.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

struct NodeProgramSpec {
  std::string program;  // empty: none
  absl::Duration timeout = absl::Seconds(60);
  std::vector<std::string> command;  // argv, of a check that has been found on this machine
  friend bool operator==(const NodeProgramSpec&, const NodeProgramSpec&) = default;
};

struct NodeProgramsSpec {
  NodeProgramSpec round_hook;  // --round_hook: before the workers of each round start
  // --node_check: before the node joins, and after each failure of its workers.
  NodeProgramSpec check;
  friend bool operator==(const NodeProgramsSpec&, const NodeProgramsSpec&) = default;
};

}  // namespace muster

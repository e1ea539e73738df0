// Finds where this process's control groups lie in the file system.
//
// Source: kernel documentation, cgroup-v1/cgroups.rst, cgroup-v2.rst; proc(5), mountinfo.
//
// Pure values.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::agent {

struct ControlGroup {
  std::string mount;      // where the hierarchy is mounted
  std::string directory;  // the group's own; `mount`, or below it
};

// Finds the group in the texts of /proc/self/cgroup and /proc/self/mountinfo. `controller` is
// "memory" or "cpu" of v1, or empty for the v2 hierarchy. Returns nothing where it is not mounted.
std::optional<ControlGroup> FindControlGroup(absl::string_view cgroup, absl::string_view mountinfo,
                                             absl::string_view controller);

}  // namespace muster::agent

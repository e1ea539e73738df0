// What is mounted where, as a process sees it.
//
// Pure values.
// Source: proc(5), /proc/pid/mountinfo
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::agent {

struct Mount {
  std::string root;     // what of the file system is mounted
  std::string point;    // where
  std::string type;     // "ext4", "nfs4", "fuse.sshfs"
  std::string options;  // of the file system, separated by commas
};

// The lines of a mountinfo, in their order; those that are none are left out.
std::vector<Mount> ParseMounts(absl::string_view mountinfo);

// The mount that an absolute path lies on: the innermost, and of several at one place the last.
std::optional<Mount> MountOf(absl::string_view mountinfo, absl::string_view path);

}  // namespace muster::agent

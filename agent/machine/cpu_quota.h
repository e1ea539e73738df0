// How many CPUs this process may use: those of its affinity mask, and no more than the quota of its
// control groups allows, as a container's CPU limit.
//
// Source: kernel documentation, cgroup-v2.rst "cpu.max", scheduler/sched-bwc.rst (v1).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::agent {

// The smallest quota of this process's group and those above it, in CPUs, rounded up; nothing where
// none is set. From the texts of /proc/self/cgroup and /proc/self/mountinfo; `read` returns the
// text of a file, empty if it is not there.
//
// Threads: pure.
std::optional<int> FindCpuQuota(absl::string_view cgroup, absl::string_view mountinfo,
                                const std::function<std::string(const std::string& path)>& read);

// The number of CPUs that affinity and quota leave to this process; at least 1.
//
// Threads: safe.
int CountCpus();

}  // namespace muster::agent

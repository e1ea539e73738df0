// The lists that schedulers give their jobs, as text -> values: Slurm's node lists and counts, and
// the host lists and host files of LSF and PBS. Expanded here, because the scheduler's own tools
// are often missing inside containers.
//
// Errors:  kInvalidArgument saying what was expected, and where.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::launcher {

// Longer lists are refused: a mistyped range must not fill the memory.
inline constexpr int kMaxListedNodes = 100000;

// "gpu[001-004,7],login1" -> gpu001 gpu002 gpu003 gpu004 gpu7 login1, in that order. Several
// brackets in one name stand for all combinations, the last one changing first:
// "rack[1-2]n[0-1]" -> rack1n0 rack1n1 rack2n0 rack2n1.
//
// Source: Slurm 22.05, scontrol(1), "show hostnames"; src/common/hostlist.c (leading zeros give the
// width of a range).
absl::StatusOr<std::vector<std::string>> ExpandNodeList(const std::string& text);

// "2(x3),1" -> 2 2 2 1: a count for each node.
//
// Source: Slurm 22.05, sbatch(1), SLURM_TASKS_PER_NODE.
absl::StatusOr<std::vector<int>> ExpandCounts(const std::string& text);

// One host of a host file, with how often it was named.
struct HostSlots {
  std::string host;
  int slots = 0;
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// Names with blanks or lines between them, one per slot: LSB_HOSTS, LSB_DJOB_HOSTFILE,
// PBS_NODEFILE, SKYPILOT_NODE_IPS. Each host once, where it is named first.
absl::StatusOr<std::vector<HostSlots>> ReadHostPerSlot(const std::string& text);

// "h1 8 h2 4": LSB_MCPU_HOSTS.
absl::StatusOr<std::vector<HostSlots>> ReadHostsWithCounts(const std::string& text);

}  // namespace muster::launcher

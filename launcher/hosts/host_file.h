// DeepSpeed's host files and its choice of hosts: text -> nodes with their workers.
//
// Source:  DeepSpeed 0.18, deepspeed/launcher/runner.py (_parse_hostfile, parse_resource_filter).
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::launcher {

// A host as it was listed, with the slots (GPUs) that are used there.
struct HostEntry {
  std::string host;
  std::vector<int> slots;     // ids, rising
  bool are_all_slots = true;  // none of the listed ones was left out
  friend bool operator==(const HostEntry&, const HostEntry&) = default;
};

// A slot count above this is mistyped.
inline constexpr int kMaxSlots = 4096;

// Lines "name slots=N", which may end with max_slots=M; what follows `#` and blank lines do not
// count.
//
// Errors: kInvalidArgument with the line's number and text: not of that form, a host twice, none at
// all.
absl::StatusOr<std::vector<HostEntry>> ParseHostFile(const std::string& text);

// --include, --exclude, --num_nodes, --num_gpus, as they were given; empty or none: not given.
struct HostChoice {
  std::string include;
  std::string exclude;
  std::optional<int> num_nodes;
  std::optional<int> num_gpus;
};

// The hosts that take part, in the order of the file. Hosts are separated by `@`, slots behind `:`
// by commas: "worker-0@worker-1:0,2". A host that is named again adds its slots.
//
// Errors: kInvalidArgument naming the option and what it asks for that is not in the file; two
// options that exclude each other; nothing left.
absl::StatusOr<std::vector<HostEntry>> ChooseHosts(std::vector<HostEntry> hosts,
                                                   const HostChoice& choice);

}  // namespace muster::launcher

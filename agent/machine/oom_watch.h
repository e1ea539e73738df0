// Reads how many processes of our control group the kernel has killed for want of memory, so that a
// SIGKILL that was not ours can be called by its name, and a failure by what its helper died of.
//
// cgroup v1 (memory.oom_control) and v2 (memory.events) both say `oom_kill <count>`.
// Source: kernel documentation, cgroup-v1/memory.rst section 10, cgroup-v2.rst "memory.events".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace muster::agent {

// The counter in the text of either file; nothing if it is not there.
//
// Threads: pure.
std::optional<int64_t> ParseOomKills(absl::string_view text);

// The file with the counter, from the texts of /proc/self/cgroup and /proc/self/mountinfo. On a
// hybrid system the v1 memory controller, if there is one, is the one that counts. Empty if memory
// is not accounted.
//
// Threads: pure.
std::string FindOomKillFile(absl::string_view cgroup, absl::string_view mountinfo);

// Threads: compatible.
class OomWatch {
 public:
  // Finds the counter of the calling process's control group, where its children will be too.
  static OomWatch Open();

  // How many were killed so far; nothing where the kernel does not tell.
  std::optional<int64_t> Count() const;
  // Whether any has been killed since the last kill that this told of, Forget, or Open.
  bool HasNewKills();
  void Forget() { told_ = Count(); }

 private:
  explicit OomWatch(std::string path) : path_(std::move(path)), told_(Count()) {}

  std::string path_;  // empty: none
  std::optional<int64_t> told_;
};

}  // namespace muster::agent

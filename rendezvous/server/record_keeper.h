// The interface through which records of jobs are made durable: StateWriter (state_writer.h) in
// musterd --state_dir. A server without one keeps its state in memory, and holds nothing back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "rendezvous/core/job_table.h"

namespace muster::rendezvous {

// What is to be kept of one job from now on, in its form on disk (record_wire.h).
struct KeptChange {
  JobKey key;
  Instance instance;
  std::optional<std::string> round;  // as it was, if absent
  std::string progress;
  std::optional<absl::Duration> forget_after;  // the instance has ended
};

class RecordKeeper {
 public:
  virtual ~RecordKeeper() = default;
  struct Listener {
    // Follows the calls of Keep in their order; one call may stand for several.
    std::function<void(uint64_t ticket)> on_durable;
    // Why nothing can be kept at the moment; empty: it can be again. Once for each change.
    std::function<void(std::string why)> on_trouble;
  };
  // Loop thread only; so is the listener.
  virtual void Open(Listener listener) = 0;
  virtual void Keep(std::vector<KeptChange> changes, uint64_t ticket) = 0;
};

}  // namespace muster::rendezvous

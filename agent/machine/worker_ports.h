// The ports that a node holds for its workers while a round lasts: one for their store, and one for
// each of them.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "agent/machine/port_reservation.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// Threads: compatible.
class WorkerPorts {
 public:
  // Gives back those of the last round first. They come from `range`; `master_port`, of a job on
  // one node, is held too unless it is 0. Workers may listen on any address, so all are held.
  //
  // Errors: as PortReservation's; nothing is held then but perhaps `master_port`.
  absl::Status Reserve(int num_workers, PortRange range, int master_port);

  // Once they are reserved.
  int store_port() const { return ports_->ports().front(); }
  // Shapes: [num_workers].
  std::vector<int> worker_ports() const {
    return {ports_->ports().begin() + 1, ports_->ports().end()};
  }

 private:
  std::optional<PortReservation> ports_;
  std::optional<PortReservation> master_port_;
};

}  // namespace muster::agent

#include "agent/machine/worker_ports.h"

#include "proto/base/status_macros.h"

namespace muster::agent {

absl::Status WorkerPorts::Reserve(int num_workers, PortRange range, int master_port) {
  constexpr char kEveryAddress[] = "";
  ports_.reset();
  master_port_.reset();
  if (master_port != 0) {
    MUSTER_ASSIGN_OR_RETURN(master_port_,
                            PortReservation::ReserveExact(kEveryAddress, master_port));
  }
  MUSTER_ASSIGN_OR_RETURN(ports_, PortReservation::Reserve(kEveryAddress, 1 + num_workers, range));
  return absl::OkStatus();
}

}  // namespace muster::agent

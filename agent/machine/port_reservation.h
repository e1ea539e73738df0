// Holds TCP ports for workers until they bind them (agent/README.md, "Ports").
//
// A reserved port is bound, never listened on, and has SO_REUSEADDR set once it is ours: then
// another program that sets SO_REUSEADDR too (PyTorch's TCPStore, libuv, Gloo) can bind and listen
// while we still hold it, but the kernel gives it to nobody by chance, and another PortReservation
// does not get it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/process/parked_descriptors.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// Threads: compatible.
class PortReservation {
 public:
  // Reserves `num_ports` different ports on `address`, a numeric IPv4 or IPv6 address of this
  // machine (with or without brackets), or all of them if empty. Ports come from `range`, or from
  // the kernel if that is {0, 0}.
  //
  // Errors: kInvalidArgument: no such address, or no such range; kPermissionDenied: a port below
  // 1024; kResourceExhausted: the range has not enough free ports, or the process not enough
  // descriptors.
  static absl::StatusOr<PortReservation> Reserve(const std::string& address, int num_ports,
                                                 PortRange range);

  // Reserves this very port.
  //
  // Errors: as above; kInvalidArgument also if it is in use: "port 29500 on 127.0.0.1 is in use by
  // pid 4242 (python3)".
  static absl::StatusOr<PortReservation> ReserveExact(const std::string& address, int port);

  // Shapes: [num_ports], in the order of reservation.
  const std::vector<int>& ports() const { return ports_; }

  // Gives them back before the end of this object.
  void Release() { sockets_.Clear(); }

 private:
  std::vector<int> ports_;
  ParkedDescriptors sockets_;  // of the ports: nothing is done with them
};

// One line of /proc/net/tcp or tcp6 that has the port as its local one.
struct PortUse {
  bool listens = false;
  bool is_remnant = false;  // TIME_WAIT and the like: no process holds it any more
  uint64_t inode = 0;
  int64_t uid = 0;
  friend bool operator==(const PortUse&, const PortUse&) = default;
};

// Threads: pure.
// Source:  kernel documentation, networking/proc_net_tcp.rst
std::vector<PortUse> FindPortUses(absl::string_view proc_net_tcp, int port);

// The process that listens on a port of this machine, or else is connected from it: "pid 4242
// (python3)"; "a process of uid 1001" if it is not ours to look at; empty if none is seen: a port
// that is bound but not listened on has no line in /proc/net.
std::string DescribePortHolder(int port);

}  // namespace muster::agent

// Which of this machine's addresses the ranks connect over.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::comm {

// One address of an interface, or an interface that cannot be used: is down or has no address.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric; empty: it has none that others could reach
  bool is_up = true;
  bool is_loopback = false;
  bool is_ipv6 = false;

  bool is_usable() const { return is_up && !address.empty(); }
};

// Every interface: those that can be used first, IPv4 before IPv6, without link-local addresses.
std::vector<InterfaceAddress> ListInterfaceAddresses();

// "this machine has lo (127.0.0.1), eth0 (10.0.0.4), eth1 (down), ib0 (no address)".
std::string DescribeChoices(const std::vector<InterfaceAddress>& addresses);
std::string DescribeChoices();

struct InterfaceWish {
  // GLOO_SOCKET_IFNAME: one name, or several with commas; the first is used.
  std::string gloo_interfaces;
  // NCCL_SOCKET_IFNAME, where there is no such name: see interface_pattern.h. Of those that fit,
  // the one from which master_addr is reached, else the first, loopback last.
  std::string nccl_interfaces;
  std::string master_addr;     // else: the address from which this is reached
  bool several_nodes = false;  // then a loopback address is of no use
};

// Errors: kInvalidArgument: no such interface, or it is down or has no address: names the variable
//         and the choices; MASTER_ADDR cannot be resolved.
absl::StatusOr<InterfaceAddress> ChooseInterface(const InterfaceWish& wish,
                                                 const std::vector<InterfaceAddress>& addresses);

// That `pattern` (NCCL_SOCKET_IFNAME; empty: any) fits an interface that can be used. NCCL itself
// would only say that it found no socket interface.
//
// Errors: kInvalidArgument: it fits none, or only such as are down or have no address: names them
//         and the choices.
absl::Status CheckNcclInterfaces(const std::string& pattern,
                                 const std::vector<InterfaceAddress>& addresses);

}  // namespace muster::comm

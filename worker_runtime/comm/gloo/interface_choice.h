// Which of this machine's addresses the ranks connect over.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::comm {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric
  bool is_loopback = false;
  bool is_ipv6 = false;
};

// Addresses of interfaces that are up; IPv4 before IPv6, without link-local ones.
std::vector<InterfaceAddress> ListInterfaceAddresses();

// "this machine has lo (127.0.0.1) and eth0 (10.0.0.4)".
std::string DescribeChoices(const std::vector<InterfaceAddress>& addresses);
std::string DescribeChoices();

struct InterfaceWish {
  std::string
      interface_names;  // GLOO_SOCKET_IFNAME: one name, or several with commas; the first is used
  std::string master_addr;     // else: the address from which this is reached
  bool several_nodes = false;  // then a loopback address is of no use
};

// Errors: kInvalidArgument: no such interface, or it has no address: names the choices; MASTER_ADDR
// cannot be resolved.
absl::StatusOr<InterfaceAddress> ChooseInterface(const InterfaceWish& wish,
                                                 const std::vector<InterfaceAddress>& addresses);

}  // namespace muster::comm

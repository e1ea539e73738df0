// Which of this machine's addresses the ranks connect over.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

// Which network interfaces NCCL_SOCKET_IFNAME means.
//
//   eth,ib       those whose name begins with eth or ib
//   =eth0,eth1   eth0 and eth1 alone
//   ^docker,lo   all but those whose name begins with docker or lo
//   ^=lo         all but lo
//
// Source: NCCL user guide, "Environment variables", NCCL_SOCKET_IFNAME. The marks stand once,
//         before the list. As in NCCL, an element may end in ":port", which says nothing about
//         names, empty elements are passed over, and a value of less than two characters sets
//         nothing.
struct InterfacePattern {
  bool excludes = false;  // ^
  bool is_exact = false;  // =
  std::vector<std::string> names;

  bool Matches(absl::string_view interface) const;
};

// Never fails: each text is a pattern, if one that fits nothing. Without names it fits all of them,
// or none if it excludes.
InterfacePattern ParseInterfacePattern(absl::string_view text);

// Whether NCCL takes `text` as a setting at all.
bool IsInterfacePattern(absl::string_view text);

struct InterfaceWish {
  // GLOO_SOCKET_IFNAME: one name, or several with commas; the first is used.
  std::string gloo_interfaces;
  // NCCL_SOCKET_IFNAME, where there is no such name: see InterfacePattern. Of those that fit,
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
// Errors: kInvalidArgument: no interface matches, or only interfaces that are down or have no
//         address do: names them and the choices.
absl::Status CheckNcclInterfaces(const std::string& pattern,
                                 const std::vector<InterfaceAddress>& addresses);

}  // namespace muster::comm

// Which network the workers of a job of several nodes use, and how they are told.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "proto/base/environment.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// One interface of this node that is up. network/local_interfaces.h lists them.
struct Interface {
  struct Subnet {
    std::string address;  // numeric, without a zone
    int prefix_length = 0;
    friend bool operator==(const Subnet&, const Subnet&) = default;
  };
  std::string name;
  bool is_loopback = false;
  int mtu = 0;
  std::vector<Subnet> subnets;
};

// The interface that has `address`; nullptr: none has.
const Interface* FindByAddress(const std::vector<Interface>& interfaces,
                               const std::string& address);
const Interface* FindByName(const std::vector<Interface>& interfaces, const std::string& name);

// "10.0.0.7" lies in "10.0.0.2/24".
bool IsInSubnet(const std::string& address, const Interface::Subnet& subnet);

// All numeric addresses of one of the other nodes, as far as they are known.
struct PeerAddresses {
  std::vector<std::string> addresses;
  // The addresses of all its interfaces, and not only the one that it is reached at.
  bool are_complete = false;
};

struct NetworkChoice {
  std::string interface;  // empty: nothing is told to the workers
  std::string address;    // of this node, on the interface
  bool is_only = false;   // no other interface of this node could reach every peer
  std::string reason;     // why this one, or why none
  friend bool operator==(const NetworkChoice&, const NetworkChoice&) = default;
};

// `source` is this node's own address on the way to the master: of the route there or, on the
// master's node, the master's.
NetworkChoice ChooseNetwork(const NetworkUse& use, const std::vector<Interface>& interfaces,
                            const std::string& source, const std::vector<PeerAddresses>& peers);

// The address at which a node that is `host` itself is reached from outside, if the name leads to
// its loopback alone, as Debian's /etc/hosts has it (127.0.1.1). Empty: the name is loopback's own,
// or leads elsewhere, or there is no other address. `outward`: the interface to prefer; nullptr:
// any.
struct OutwardAddress {
  std::string address;
  std::string note;
};
OutwardAddress LeaveLoopback(const std::string& host, const std::string& resolved,
                             const std::vector<Interface>& interfaces, const Interface* outward);

// The addresses at which a node can be reached, or from which its programs may reach others, but
// `chosen`: those of loopback and of one machine's own bridges are left out. `outward` comes first
// if it is there. At most kMaxOtherAddresses.
std::vector<std::string> OtherAddresses(const std::vector<Interface>& interfaces,
                                        const std::string& chosen, const std::string& outward);

// The variables to set for the workers over `inherited`: only what is not set there.
//
// Source: PyTorch's Gloo group and tensor pipes; NCCL's documentation of NCCL_SOCKET_IFNAME ("=" in
//         front: this very name); the environment variables of vLLM and SGLang.
EnvironmentMap NetworkVariables(const NetworkChoice& choice, const EnvironmentMap& inherited);

}  // namespace muster::agent

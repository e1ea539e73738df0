#include "agent/network/network_choice.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster::agent {
namespace {

// An address as bytes; empty: none.
std::vector<unsigned char> BytesOf(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const std::string plain = address.substr(0, address.find('%'));
  if (::inet_pton(AF_INET, plain.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.begin() + sizeof(in_addr)};
  }
  if (::inet_pton(AF_INET6, plain.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.end()};
  }
  return {};
}

// What container engines and hypervisors make on every machine alike: their addresses say nothing
// of where a peer is.
bool IsOfThisMachineAlone(const Interface& interface) {
  if (interface.is_loopback) return true;
  for (const char* prefix : {"docker", "virbr", "lxcbr", "veth", "cni", "cali", "podman"}) {
    if (absl::StartsWith(interface.name, prefix)) return true;
  }
  return false;
}

bool CanReach(const Interface& interface, const PeerAddresses& peer) {
  return absl::c_any_of(peer.addresses, [&](const std::string& address) {
    return absl::c_any_of(interface.subnets, [&](const Interface::Subnet& subnet) {
      return subnet.address != address && IsInSubnet(address, subnet);
    });
  });
}

bool CanReachAll(const Interface& interface, const std::vector<PeerAddresses>& peers) {
  return absl::c_all_of(peers,
                        [&](const PeerAddresses& peer) { return CanReach(interface, peer); });
}

// Whether it is certain that no other interface would do.
bool IsOnly(const Interface& chosen, const std::vector<Interface>& interfaces,
            const std::vector<PeerAddresses>& peers) {
  const bool are_known =
      absl::c_all_of(peers, [](const PeerAddresses& p) { return p.are_complete; });
  return are_known && absl::c_none_of(interfaces, [&](const Interface& other) {
           return other.name != chosen.name && !IsOfThisMachineAlone(other) &&
                  CanReachAll(other, peers);
         });
}

std::string AddressOn(const Interface& interface, const std::string& preferred) {
  for (const Interface::Subnet& subnet : interface.subnets) {
    if (subnet.address == preferred) return preferred;
  }
  return interface.subnets.empty() ? "" : interface.subnets.front().address;
}

}  // namespace

const Interface* FindByAddress(const std::vector<Interface>& interfaces,
                               const std::string& address) {
  for (const Interface& interface : interfaces) {
    for (const Interface::Subnet& subnet : interface.subnets) {
      if (!address.empty() && BytesOf(subnet.address) == BytesOf(address)) return &interface;
    }
  }
  return nullptr;
}

const Interface* FindByName(const std::vector<Interface>& interfaces, const std::string& name) {
  for (const Interface& interface : interfaces) {
    if (interface.name == name) return &interface;
  }
  return nullptr;
}

bool IsInSubnet(const std::string& address, const Interface::Subnet& subnet) {
  const std::vector<unsigned char> a = BytesOf(address);
  const std::vector<unsigned char> b = BytesOf(subnet.address);
  if (a.empty() || a.size() != b.size()) return false;
  for (int bit = 0; bit < subnet.prefix_length && bit < static_cast<int>(8 * a.size()); bit += 8) {
    const int kept = std::min(8, subnet.prefix_length - bit);
    const int mask = 0xff << (8 - kept) & 0xff;
    if ((a[bit / 8] & mask) != (b[bit / 8] & mask)) return false;
  }
  return true;
}

NetworkChoice ChooseNetwork(const NetworkUse& use, const std::vector<Interface>& interfaces,
                            const std::string& source, const std::vector<PeerAddresses>& peers) {
  if (use.kind == NetworkUse::Kind::kOff) return {.reason = "--network=off"};
  const bool is_named = use.kind == NetworkUse::Kind::kNamed;
  const Interface* const chosen =
      is_named ? FindByName(interfaces, use.interface) : FindByAddress(interfaces, source);
  if (chosen == nullptr) {
    return {.reason = is_named ? absl::StrCat("there is no interface ", use.interface, " here")
                               : absl::StrCat("no interface of this node has ", source)};
  }
  if (chosen->is_loopback && !is_named) {
    return {.reason = "the nodes meet on loopback, inside one machine"};
  }
  return {.interface = chosen->name,
          .address = AddressOn(*chosen, source),
          .is_only = IsOnly(*chosen, interfaces, peers),
          .reason = is_named ? "--network" : "it leads to the master"};
}

OutwardAddress LeaveLoopback(const std::string& host, const std::string& resolved,
                             const std::vector<Interface>& interfaces, const Interface* outward) {
  const bool is_loopback = absl::StartsWith(resolved, "127.") || resolved == "::1";
  const bool is_name = BytesOf(host).empty() && !absl::StartsWith(host, "localhost") &&
                       !absl::StartsWith(host, "ip6-");
  if (!is_loopback || !is_name) return {};
  if (outward == nullptr) {
    const auto any = absl::c_find_if_not(interfaces, IsOfThisMachineAlone);
    if (any == interfaces.end()) return {};
    outward = &*any;
  }
  if (outward->is_loopback || outward->subnets.empty()) return {};
  const std::string& address = outward->subnets.front().address;
  return {.address = address,
          .note = absl::StrCat(
              "the name ", host, " is ", resolved, " on this machine (/etc/hosts), ",
              "where no other node reaches it; using ", address, " (", outward->name, ")")};
}

EnvironmentMap NetworkVariables(const NetworkChoice& choice, const EnvironmentMap& inherited) {
  EnvironmentMap variables;
  if (choice.interface.empty()) return variables;
  const auto set = [&](const char* name, const std::string& value) {
    if (FindVariable(inherited, name) == nullptr && !value.empty()) variables[name] = value;
  };
  set("GLOO_SOCKET_IFNAME", choice.interface);
  set("TP_SOCKET_IFNAME", choice.interface);
  set("VLLM_HOST_IP", choice.address);
  set("SGLANG_HOST_IP", choice.address);
  if (choice.is_only) set("NCCL_SOCKET_IFNAME", absl::StrCat("=", choice.interface));
  return variables;
}

}  // namespace muster::agent

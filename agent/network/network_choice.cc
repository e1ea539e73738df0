#include "agent/network/network_choice.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/membership.h"
#include "proto/base/numeric_address.h"

namespace muster::agent {
namespace {

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
      if (!address.empty() && BytesOfAddress(subnet.address) == BytesOfAddress(address))
        return &interface;
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
  const size_t size = BytesOfAddress(address).size();
  if (size == 0 || size != BytesOfAddress(subnet.address).size()) return false;
  return CommonPrefixLength(address, subnet.address) >=
         std::min(subnet.prefix_length, static_cast<int>(8 * size));
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
  const bool is_name = BytesOfAddress(host).empty() && !absl::StartsWith(host, "localhost") &&
                       !absl::StartsWith(host, "ip6-");
  if (!IsLoopbackAddress(resolved) || !is_name) return {};
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

std::vector<std::string> OtherAddresses(const std::vector<Interface>& interfaces,
                                        const std::string& chosen, const std::string& outward) {
  std::vector<std::string> found;
  for (const Interface& interface : interfaces) {
    if (IsOfThisMachineAlone(interface)) continue;
    for (const Interface::Subnet& subnet : interface.subnets) {
      if (subnet.address == chosen) continue;
      found.insert(subnet.address == outward ? found.begin() : found.end(), subnet.address);
    }
  }
  if (found.size() > kMaxOtherAddresses) found.resize(kMaxOtherAddresses);
  return found;
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

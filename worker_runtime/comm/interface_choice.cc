#include "worker_runtime/comm/interface_choice.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/io/unique_fd.h"

namespace muster::comm {
namespace {

std::string NumericText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

// The address of `entry` if other processes can connect to it.
std::string UsableAddress(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return "";
  if (entry.ifa_addr->sa_family == AF_INET) return NumericText(entry.ifa_addr);
  if (entry.ifa_addr->sa_family != AF_INET6) return "";
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr) ? "" : NumericText(entry.ifa_addr);
}

// "eth1 is down"; "ib0 has no address"; "there is no interface eth7".
std::string WhyUnusable(absl::string_view name, const std::vector<InterfaceAddress>& addresses) {
  for (const InterfaceAddress& each : addresses) {
    if (each.interface != name) continue;
    return absl::StrCat("interface ", name, each.is_up ? " has no address" : " is down");
  }
  return absl::StrCat("there is no interface ", name.empty() ? "without a name" : name);
}

const InterfaceAddress* FindUsable(absl::string_view name,
                                   const std::vector<InterfaceAddress>& addresses) {
  for (const InterfaceAddress& each : addresses) {
    if (each.interface == name && each.is_usable()) return &each;
  }
  return nullptr;
}

// The address that packets to `host` leave from. No packet is sent.
absl::StatusOr<std::string> SourceAddressTowards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("MASTER_ADDR=", host, " cannot be resolved: ", gai_strerror(error),
                     "; name an interface in GLOO_SOCKET_IFNAME, or correct the name"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const UniqueFd fd(socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd) continue;
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    const bool routed = connect(fd.get(), to->ai_addr, to->ai_addrlen) == 0 &&
                        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&from), &length) == 0;
    if (routed) return NumericText(reinterpret_cast<const sockaddr*>(&from));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no route to MASTER_ADDR=", host, "; ", DescribeChoices()));
}

absl::StatusOr<InterfaceAddress> ChooseByName(const std::string& names,
                                              const std::vector<InterfaceAddress>& addresses) {
  const std::vector<std::string> wanted = absl::StrSplit(names, ',');
  for (const std::string& name : wanted) {
    if (FindUsable(name, addresses) != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("GLOO_SOCKET_IFNAME=", names, ": ",
                                                   WhyUnusable(name, addresses), "; ",
                                                   DescribeChoices(addresses)));
  }
  return *FindUsable(wanted.front(), addresses);
}

absl::StatusOr<InterfaceAddress> ChooseByPattern(const InterfaceWish& wish,
                                                 const std::vector<InterfaceAddress>& addresses) {
  const absl::Status status = CheckNcclInterfaces(wish.nccl_interfaces, addresses);
  if (!status.ok()) return status;
  const InterfacePattern pattern = ParseInterfacePattern(wish.nccl_interfaces);
  // A master that cannot be resolved here is named when somebody connects to it.
  const std::string source =
      wish.master_addr.empty() ? "" : SourceAddressTowards(wish.master_addr).value_or("");
  const InterfaceAddress* chosen = nullptr;
  for (const InterfaceAddress& each : addresses) {
    if (!each.is_usable() || !pattern.Matches(each.interface)) continue;
    if (each.address == source && !(wish.several_nodes && each.is_loopback)) return each;
    if (chosen == nullptr || (chosen->is_loopback && !each.is_loopback)) chosen = &each;
  }
  return *chosen;  // the check found one
}

}  // namespace

bool IsInterfacePattern(absl::string_view text) { return text.size() > 1; }

InterfacePattern ParseInterfacePattern(absl::string_view text) {
  InterfacePattern pattern;
  pattern.excludes = absl::ConsumePrefix(&text, "^");
  pattern.is_exact = absl::ConsumePrefix(&text, "=");
  for (absl::string_view element : absl::StrSplit(text, ',')) {
    const absl::string_view name = element.substr(0, element.find(':'));
    if (!name.empty()) pattern.names.emplace_back(name);
  }
  return pattern;
}

bool InterfacePattern::Matches(absl::string_view interface) const {
  const bool is_listed =
      names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return is_exact ? interface == name : absl::StartsWith(interface, name);
      });
  return is_listed != excludes;
}

std::vector<InterfaceAddress> ListInterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<InterfaceAddress> out, unusable;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const InterfaceAddress each{
        .interface = entry->ifa_name,
        .address = UsableAddress(*entry),
        .is_up = (entry->ifa_flags & IFF_UP) != 0,
        .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
        .is_ipv6 = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET6};
    (each.is_usable() ? out : unusable).push_back(each);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.is_ipv6 < b.is_ipv6; });
  // The kernel lists an interface once more for each kind of address; one entry says why it is of
  // no use.
  for (const InterfaceAddress& each : unusable) {
    const bool is_known = std::any_of(out.begin(), out.end(), [&](const InterfaceAddress& other) {
      return other.interface == each.interface;
    });
    if (!is_known) out.push_back(each);
  }
  return out;
}

std::string DescribeChoices(const std::vector<InterfaceAddress>& addresses) {
  if (addresses.empty()) return "this machine has no network interface";
  return absl::StrCat(
      "this machine has ",
      absl::StrJoin(addresses, ", ", [](std::string* out, const InterfaceAddress& a) {
        absl::StrAppend(out, a.interface, " (",
                        !a.is_up            ? "down"
                        : a.address.empty() ? "no address"
                                            : a.address,
                        ")");
      }));
}

std::string DescribeChoices() { return DescribeChoices(ListInterfaceAddresses()); }

absl::Status CheckNcclInterfaces(const std::string& text,
                                 const std::vector<InterfaceAddress>& addresses) {
  const bool is_set = IsInterfacePattern(text);
  const InterfacePattern pattern = ParseInterfacePattern(is_set ? text : "");
  std::vector<std::string> unusable;
  for (const InterfaceAddress& each : addresses) {
    if (!pattern.Matches(each.interface)) continue;
    if (each.is_usable()) return absl::OkStatus();
    unusable.push_back(WhyUnusable(each.interface, addresses));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      is_set ? absl::StrCat("NCCL_SOCKET_IFNAME=", text, ": ") : "",
      unusable.empty() ? "no interface of this machine fits" : absl::StrJoin(unusable, ", "), "; ",
      DescribeChoices(addresses)));
}

absl::StatusOr<InterfaceAddress> ChooseInterface(const InterfaceWish& wish,
                                                 const std::vector<InterfaceAddress>& addresses) {
  if (!wish.gloo_interfaces.empty()) return ChooseByName(wish.gloo_interfaces, addresses);
  if (IsInterfacePattern(wish.nccl_interfaces)) return ChooseByPattern(wish, addresses);
  if (wish.master_addr.empty()) {
    return InterfaceAddress{.interface = "lo", .address = "127.0.0.1", .is_loopback = true};
  }
  const absl::StatusOr<std::string> source = SourceAddressTowards(wish.master_addr);
  if (!source.ok()) return source.status();
  InterfaceAddress chosen{.interface = "an interface", .address = *source};
  for (const InterfaceAddress& each : addresses) {
    if (each.address == *source) chosen = each;
  }
  // Debian's /etc/hosts maps a machine's own name to 127.0.1.1, which other nodes cannot reach.
  const bool is_loopback = absl::StartsWith(*source, "127.") || *source == "::1";
  if (!wish.several_nodes || !is_loopback) return chosen;
  for (const InterfaceAddress& each : addresses) {
    if (each.is_usable() && !each.is_loopback) return each;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job has several nodes, but this one has no address that others could reach; ",
      DescribeChoices(addresses)));
}

}  // namespace muster::comm

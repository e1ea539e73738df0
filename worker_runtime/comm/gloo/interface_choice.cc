#include "worker_runtime/comm/gloo/interface_choice.h"

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

bool IsUsable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
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
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    const bool routed = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                        getsockname(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0;
    close(fd);
    if (routed) return NumericText(reinterpret_cast<const sockaddr*>(&from));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no route to MASTER_ADDR=", host, "; ", DescribeChoices()));
}

absl::StatusOr<InterfaceAddress> ChooseByName(const std::string& names,
                                              const std::vector<InterfaceAddress>& addresses) {
  const std::vector<std::string> wanted = absl::StrSplit(names, ',');
  for (const std::string& name : wanted) {
    const bool exists = std::any_of(addresses.begin(), addresses.end(),
                                    [&](const auto& a) { return a.interface == name; });
    if (!exists) {
      return absl::InvalidArgumentError(
          absl::StrCat("GLOO_SOCKET_IFNAME=", names, ": there is no interface ",
                       name.empty() ? "without a name" : name, " that is up and has an address; ",
                       DescribeChoices(addresses)));
    }
  }
  return *std::find_if(addresses.begin(), addresses.end(),
                       [&](const auto& a) { return a.interface == wanted.front(); });
}

}  // namespace

std::vector<InterfaceAddress> ListInterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<InterfaceAddress> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!IsUsable(*entry)) continue;
    out.push_back({.interface = entry->ifa_name,
                   .address = NumericText(entry->ifa_addr),
                   .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                   .is_ipv6 = entry->ifa_addr->sa_family == AF_INET6});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.is_ipv6 < b.is_ipv6; });
  return out;
}

std::string DescribeChoices(const std::vector<InterfaceAddress>& addresses) {
  if (addresses.empty()) return "this machine has no interface that is up";
  return absl::StrCat(
      "this machine has ",
      absl::StrJoin(addresses, ", ", [](std::string* out, const InterfaceAddress& a) {
        absl::StrAppend(out, a.interface, " (", a.address, ")");
      }));
}

std::string DescribeChoices() { return DescribeChoices(ListInterfaceAddresses()); }

absl::StatusOr<InterfaceAddress> ChooseInterface(const InterfaceWish& wish,
                                                 const std::vector<InterfaceAddress>& addresses) {
  if (!wish.interface_names.empty()) return ChooseByName(wish.interface_names, addresses);
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
    if (!each.is_loopback) return each;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the job has several nodes, but this one has no address that others could reach; ",
      DescribeChoices(addresses)));
}

}  // namespace muster::comm

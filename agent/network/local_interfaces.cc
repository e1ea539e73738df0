#include "agent/network/local_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <bitset>
#include <cstring>
#include <memory>

#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

std::string Numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

socklen_t LengthOf(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

int PrefixLength(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  const bool is_four = mask->sa_family == AF_INET;
  const auto* const bytes = is_four ? reinterpret_cast<const unsigned char*>(
                                          &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr)
                                    : reinterpret_cast<const unsigned char*>(
                                          &reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr);
  int length = 0;
  for (size_t i = 0; i < (is_four ? sizeof(in_addr) : sizeof(in6_addr)); ++i) {
    length += static_cast<int>(std::bitset<8>(bytes[i]).count());
  }
  return length;
}

int MtuOf(const char* name) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name, sizeof(request.ifr_name) - 1);
  return fd && ::ioctl(fd.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

bool IsOfOneLink(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

std::vector<Interface> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || IsOfOneLink(entry->ifa_addr)) continue;
    if (FindByName(found, entry->ifa_name) == nullptr) {
      found.push_back({.name = entry->ifa_name,
                       .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                       .mtu = MtuOf(entry->ifa_name)});
    }
    for (Interface& interface : found) {
      if (interface.name != entry->ifa_name) continue;
      interface.subnets.push_back({.address = Numeric(entry->ifa_addr, LengthOf(family)),
                                   .prefix_length = PrefixLength(entry->ifa_netmask)});
    }
  }
  return found;
}

std::string SourceOfRouteTo(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  const UniqueFd fd(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage source{};
  socklen_t length = sizeof(source);
  auto* const to = reinterpret_cast<sockaddr*>(&source);
  if (!fd || ::connect(fd.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), to, &length) != 0) {
    return "";
  }
  return Numeric(to, length);
}

}  // namespace muster::agent

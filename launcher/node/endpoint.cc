#include "launcher/node/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/machine/worker_sockets.h"
#include "proto/base/mono_time.h"
#include "proto/base/numeric_address.h"
#include "proto/base/status_macros.h"
#include "proto/io/host_name.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {
namespace {

// A socket address with its length; AF_INET or AF_INET6.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::string ToNumeric(const SocketAddress& address) {
  char host[NI_MAXHOST];
  if (getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) !=
      0) {
    return "";
  }
  return host;
}

// Addresses of `host`, IPv4 first; the reason in words if there is none.
absl::StatusOr<std::vector<SocketAddress>> Lookup(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) return absl::NotFoundError(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> found;
  for (int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      SocketAddress address;
      std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
      address.length = a->ai_addrlen;
      found.push_back(address);
    }
  }
  if (found.empty()) return absl::NotFoundError("no address");
  return found;
}

// An address is ours if a socket can be bound to it. Independent of how interfaces are listed, and
// right for all of 127.0.0.0/8.
bool IsOwn(const SocketAddress& address) {
  const UniqueFd fd(socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && bind(fd.get(), address.get(), address.length) == 0;
}

void SetPort(SocketAddress& address, int port) {
  const auto number = htons(static_cast<in_port_t>(port));
  if (address.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  } else {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  }
}

absl::StatusOr<SocketAddress> RouteSource(const SocketAddress& to) {
  SocketAddress target = to;
  SetPort(target, 9);
  const UniqueFd fd(socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return absl::InternalError(std::strerror(errno));
  SocketAddress source;
  source.length = sizeof(source.storage);
  if (connect(fd.get(), target.get(), target.length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&source.storage), &source.length) != 0) {
    return absl::InvalidArgumentError(std::strerror(errno));
  }
  return source;
}

// Whether a socket of this machine listens at the endpoint, or at all addresses. It is not
// connected to: a server would take that for a stranger that leaves again.
bool HasListener(const ResolvedEndpoint& endpoint) {
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const agent::LocalSocket& each : agent::FindListeners(TextOf(path), endpoint.port)) {
      const bool is_at_all = each.address == "0.0.0.0" || each.address == "::";
      if (is_at_all || BytesOfAddress(each.address) == BytesOfAddress(endpoint.address)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<ResolvedEndpoint> ResolveEndpoint(const Endpoint& endpoint, absl::Duration patience,
                                                 const OnWait& on_wait) {
  const MonoTime give_up = MonoNow() + patience;
  const auto fault = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat("cannot resolve the endpoint's host '",
                                                   endpoint.host, "': ", status.message()));
  };
  absl::StatusOr<std::vector<SocketAddress>> addresses = Lookup(endpoint.host);
  if (!addresses.ok()) on_wait(fault(addresses.status()));
  while (!addresses.ok() && MonoNow() < give_up) {
    absl::SleepFor(absl::Milliseconds(500));
    addresses = Lookup(endpoint.host);
  }
  if (!addresses.ok()) return fault(addresses.status());
  ResolvedEndpoint resolved{
      .host = endpoint.host, .address = ToNumeric(addresses->front()), .port = endpoint.port};
  for (const SocketAddress& address : *addresses) {
    if (!IsOwn(address)) continue;
    resolved.address = ToNumeric(address);
    resolved.is_local = true;
    resolved.is_loopback = IsLoopbackAddress(resolved.address);
    break;
  }
  return resolved;
}

bool IsServedHere(const ResolvedEndpoint& endpoint) {
  if (!endpoint.is_local) return false;
  if (HasListener(endpoint)) return true;
  absl::StatusOr<std::vector<SocketAddress>> addresses = Lookup(endpoint.address);
  if (!addresses.ok()) return false;
  SocketAddress& address = addresses->front();
  SetPort(address, endpoint.port);
  const UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && connect(fd.get(), address.get(), address.length) == 0;
}

bool IsThisMachine(const std::string& host) {
  // It need not resolve, and a look-up may take long.
  if (host == "localhost" || host == HostName()) return true;
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Lookup(host);
  return addresses.ok() && absl::c_any_of(*addresses, IsOwn);
}

absl::StatusOr<std::string> ChooseLocalAddress(const std::string& local_addr,
                                               const ResolvedEndpoint& endpoint) {
  if (!local_addr.empty()) {
    const absl::StatusOr<std::vector<SocketAddress>> addresses = Lookup(local_addr);
    if (!addresses.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot resolve --local_addr '", local_addr,
                                                     "': ", addresses.status().message()));
    }
    for (const SocketAddress& address : *addresses) {
      if (IsOwn(address)) return ToNumeric(address);
    }
    return absl::InvalidArgumentError(absl::StrCat("--local_addr '", local_addr, "' (",
                                                   ToNumeric(addresses->front()),
                                                   ") is not an address of this machine"));
  }
  MUSTER_ASSIGN_OR_RETURN(const std::vector<SocketAddress> target, Lookup(endpoint.address));
  const absl::StatusOr<SocketAddress> source = RouteSource(target.front());
  if (!source.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no route to the endpoint ", endpoint.host, " (", endpoint.address,
        "): ", source.status().message(), ". Give this node's address with --local_addr"));
  }
  return ToNumeric(*source);
}

}  // namespace muster::launcher

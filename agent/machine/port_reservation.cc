#include "agent/machine/port_reservation.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/machine/worker_sockets.h"
#include "proto/base/status_macros.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  void SetPort(int port) {
    const in_port_t value = htons(static_cast<uint16_t>(port));
    if (storage.ss_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&storage)->sin_port = value;
    } else {
      reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = value;
    }
  }
  int Port() const {
    return ntohs(storage.ss_family == AF_INET
                     ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                     : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
};

std::string Shown(const std::string& address) { return address.empty() ? "any address" : address; }

// The wildcard is IPv6's, which holds the port of IPv4 too, unless this machine has no IPv6.
SocketAddress Wildcard() {
  SocketAddress address;
  UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address.storage.ss_family = probe ? AF_INET6 : AF_INET;
  address.length = probe ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

absl::StatusOr<SocketAddress> ParseAddress(const std::string& text) {
  if (text.empty()) return Wildcard();
  const std::string bare(absl::StripSuffix(absl::StripPrefix(text, "["), "]"));
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(bare.c_str(), nullptr, &hints, &found) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot reserve ports: '", text, "' is not a numeric IPv4 or IPv6 address"));
  }
  SocketAddress address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

absl::Status BindError(const std::string& address, int port, int error_number) {
  const std::string what = absl::StrCat("cannot reserve port ", port, " on ", Shown(address), ": ");
  switch (error_number) {
    case EADDRINUSE:
      return absl::ResourceExhaustedError(absl::StrCat(what, "it is in use"));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          absl::StrCat(what, address, " is not an address of this machine"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "ports below 1024 need a privilege; choose a higher one"));
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, std::strerror(error_number), "; see ulimit -n"));
    default:
      return absl::InvalidArgumentError(absl::StrCat(what, std::strerror(error_number)));
  }
}

struct BoundPort {
  UniqueFd socket;
  int port = 0;
};

void AllowReuse(int socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

// Bound without SO_REUSEADDR, a port can be had once only; the option, set afterwards, opens it for
// the worker. With `over_remnants` the option is there before, so that connections in TIME_WAIT are
// no hindrance.
//
// Errors: errno of socket or bind.
std::variant<BoundPort, int> Bind(SocketAddress address, int port, bool over_remnants) {
  BoundPort bound{UniqueFd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                  port};
  if (!bound.socket) return errno;
  const int off = 0;
  if (address.storage.ss_family == AF_INET6) {
    ::setsockopt(bound.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (over_remnants) AllowReuse(bound.socket.get());
  address.SetPort(port);
  if (::bind(bound.socket.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) !=
      0)
    return errno;
  AllowReuse(bound.socket.get());
  socklen_t length = sizeof address.storage;
  if (::getsockname(bound.socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &length) !=
      0)
    return errno;
  bound.port = address.Port();
  return bound;
}

std::vector<PortUse> ReadPortUses(int port) {
  std::vector<PortUse> uses;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const PortUse& use : FindPortUses(TextOf(path), port)) uses.push_back(use);
  }
  return uses;
}

// Whether the port is only taken by what old connections left behind, so that a listener may have
// it again.
bool OnlyRemnantsHold(int port) {
  const std::vector<PortUse> uses = ReadPortUses(port);
  return !uses.empty() &&
         std::all_of(uses.begin(), uses.end(), [](const PortUse& use) { return use.is_remnant; });
}

std::variant<BoundPort, int> BindOne(const SocketAddress& address, int port) {
  auto bound = Bind(address, port, /*over_remnants=*/false);
  const int* error = std::get_if<int>(&bound);
  if (error != nullptr && *error == EADDRINUSE && port != 0 && OnlyRemnantsHold(port)) {
    return Bind(address, port, /*over_remnants=*/true);
  }
  return bound;
}

absl::Status CheckRange(PortRange range) {
  const bool any = range.first == 0 && range.last == 0;
  if (any || (range.first >= 1 && range.first <= range.last && range.last <= 65535))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("port range ", range.first, "-", range.last,
                                                 " is not A-B with 1 <= A <= B <= 65535"));
}

std::string DescribeInodeHolder(const PortUse& use) {
  for (const std::string& pid : NamesIn("/proc")) {
    int number;
    if (!absl::SimpleAtoi(pid, &number)) continue;
    if (!absl::c_linear_search(SocketsOf(number), use.inode)) continue;
    const std::string name = TextOf(absl::StrCat("/proc/", pid, "/comm"));
    return absl::StrCat("pid ", pid, " (", absl::StripSuffix(name, "\n"), ")");
  }
  return absl::StrCat("a process of uid ", use.uid);
}

}  // namespace

std::vector<PortUse> FindPortUses(absl::string_view proc_net_tcp, int port) {
  constexpr size_t kLocal = 1, kState = 3, kUid = 7, kInode = 9;
  constexpr int kEstablished = 1, kSynSent = 2, kCloseWait = 8, kListen = 10;
  std::vector<PortUse> uses;
  for (absl::string_view line : absl::StrSplit(proc_net_tcp, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (fields.size() <= kInode) continue;
    const std::vector<absl::string_view> local = absl::StrSplit(fields[kLocal], ':');
    int its_port, state;
    if (local.size() != 2 || !absl::SimpleHexAtoi(local[1], &its_port) || its_port != port)
      continue;
    PortUse use;
    if (!absl::SimpleHexAtoi(fields[kState], &state) || !absl::SimpleAtoi(fields[kUid], &use.uid) ||
        !absl::SimpleAtoi(fields[kInode], &use.inode)) {
      continue;
    }
    use.listens = state == kListen;
    use.is_remnant = use.inode == 0 && state != kEstablished && state != kSynSent &&
                     state != kCloseWait && !use.listens;
    uses.push_back(use);
  }
  return uses;
}

std::string DescribePortHolder(int port) {
  std::vector<PortUse> uses = ReadPortUses(port);
  uses.erase(
      std::remove_if(uses.begin(), uses.end(), [](const PortUse& use) { return use.inode == 0; }),
      uses.end());
  if (uses.empty()) return "";
  const auto listener =
      std::find_if(uses.begin(), uses.end(), [](const PortUse& use) { return use.listens; });
  return DescribeInodeHolder(listener != uses.end() ? *listener : uses.front());
}

absl::StatusOr<PortReservation> PortReservation::Reserve(const std::string& address, int num_ports,
                                                         PortRange range) {
  MUSTER_RETURN_IF_ERROR(CheckRange(range));
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseAddress(address));
  const bool any = range.first == 0;
  PortReservation reservation;
  std::vector<UniqueFd> sockets;
  for (int next = range.first; static_cast<int>(reservation.ports_.size()) < num_ports; ++next) {
    if (!any && next > range.last) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the port range ", range.first, "-", range.last, " on ", Shown(address),
                       " has ", reservation.ports_.size(), " free ports, but ", num_ports,
                       " are needed; give a wider one"));
    }
    auto bound = BindOne(parsed, any ? 0 : next);
    if (const int* error = std::get_if<int>(&bound)) {
      if (!any && *error == EADDRINUSE) continue;
      return BindError(address, any ? 0 : next, *error);
    }
    reservation.ports_.push_back(std::get<BoundPort>(bound).port);
    sockets.push_back(std::move(std::get<BoundPort>(bound).socket));
    if (sockets.size() == ParkedDescriptors::kGroupMax) {
      reservation.sockets_.Park(std::exchange(sockets, {}));
    }
  }
  reservation.sockets_.Park(std::move(sockets));
  return reservation;
}

absl::StatusOr<PortReservation> PortReservation::ReserveExact(const std::string& address,
                                                              int port) {
  if (port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", port, " is not between 1 and 65535"));
  }
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress parsed, ParseAddress(address));
  auto bound = BindOne(parsed, port);
  if (const int* error = std::get_if<int>(&bound)) {
    if (*error != EADDRINUSE) return BindError(address, port, *error);
    const std::string holder = DescribePortHolder(port);
    return absl::InvalidArgumentError(absl::StrCat(
        "port ", port, " on ", Shown(address), " is in use by ",
        holder.empty() ? "a process that holds it without listening (another job's reservation?)"
                       : holder));
  }
  PortReservation reservation;
  reservation.ports_.push_back(port);
  std::vector<UniqueFd> socket;
  socket.push_back(std::move(std::get<BoundPort>(bound).socket));
  reservation.sockets_.Park(std::move(socket));
  return reservation;
}

}  // namespace muster::agent

#include "tests/support/loopback_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {

namespace {

// Whether a musterd had it and has not come to a clean end (rendezvous/server/port_mark.h).
bool IsMarked(int port) {
  const std::string end = absl::StrCat("-", port);
  for (const char* folder : {"/run/musterd", "/tmp"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename();
      const bool is_mark = folder != std::string("/tmp") || absl::StartsWith(name, ".musterd-");
      if (is_mark && absl::EndsWith(name, end)) return true;
    }
  }
  return false;
}

int NumberOf(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  MUSTER_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

}  // namespace

LoopbackPort::LoopbackPort(PortUse use, const std::string& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  MUSTER_CHECK(getaddrinfo(address.c_str(), "0", &hints, &found) == 0);
  const int reuses = use == PortUse::kTaken ? 0 : 1;
  int draws_left = 1000;
  do {
    MUSTER_CHECK(draws_left-- > 0);  // else each port has a mark
    if (fd_ >= 0) close(fd_);
    fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUSTER_CHECK(fd_ >= 0);
    MUSTER_CHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &reuses, sizeof reuses) == 0);
    MUSTER_CHECK(bind(fd_, found->ai_addr, found->ai_addrlen) == 0);
    number_ = NumberOf(fd_);
  } while (IsMarked(number_));
  freeaddrinfo(found);
  if (use == PortUse::kListening) MUSTER_CHECK(listen(fd_, 16) == 0);
}

LoopbackPort::~LoopbackPort() { close(fd_); }

}  // namespace muster::testing

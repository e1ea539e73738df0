#include "tests/support/loopback_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/status_macros.h"

namespace muster::testing {

LoopbackPort::LoopbackPort(PortUse use, const std::string& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  MUSTER_CHECK(getaddrinfo(address.c_str(), "0", &hints, &found) == 0);
  fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  MUSTER_CHECK(fd_ >= 0);
  const int on = 1;
  MUSTER_CHECK(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  MUSTER_CHECK(bind(fd_, found->ai_addr, found->ai_addrlen) == 0);
  freeaddrinfo(found);
  if (use == PortUse::kListening) MUSTER_CHECK(listen(fd_, 16) == 0);

  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  MUSTER_CHECK(getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  number_ = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

LoopbackPort::~LoopbackPort() { close(fd_); }

}  // namespace muster::testing

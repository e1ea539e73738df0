#include "tests/support/loopback_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::testing {
namespace {

// Whether a server, which sets SO_REUSEADDR, could listen on 127.0.0.1:`port`.
bool CanListen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const bool ok =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0;
  close(fd);
  return ok;
}

TEST(LoopbackPort, LetsAServerTakeAHeldPort) {
  const LoopbackPort port;
  EXPECT_TRUE(CanListen(port.number()));
}

TEST(LoopbackPort, KeepsServersOffAListeningPort) {
  const LoopbackPort port(PortUse::kListening);
  EXPECT_FALSE(CanListen(port.number()));
}

TEST(LoopbackPort, KeepsServersOffATakenPort) {
  const LoopbackPort port(PortUse::kTaken);
  EXPECT_FALSE(CanListen(port.number()));
}

TEST(LoopbackPort, IsNeverGivenOutTwiceWhileHeld) {
  const LoopbackPort one, other;
  EXPECT_NE(one.number(), other.number());
}

}  // namespace
}  // namespace muster::testing

#include "launcher/node/endpoint.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "tests/support/loopback_port.h"

namespace muster::launcher {
namespace {

using testing::LoopbackPort;
using testing::PortUse;

ResolvedEndpoint At(const std::string& address, int port) {
  return {.host = address, .address = address, .port = port, .is_local = true, .is_loopback = true};
}

bool HasBeenConnectedTo(const LoopbackPort& port) {
  pollfd listener{.fd = port.descriptor(), .events = POLLIN, .revents = 0};
  return poll(&listener, 1, /*timeout=*/0) > 0;
}

TEST(IsServedHere, SeesAListenerWithoutConnectingToIt) {
  for (const char* address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    const LoopbackPort port(PortUse::kListening, address);
    EXPECT_TRUE(IsServedHere(At(address, port.number()))) << address;
    EXPECT_FALSE(HasBeenConnectedTo(port)) << "its server would warn of a stranger";
  }
}

TEST(IsServedHere, IsNotWhereAPortIsTakenAndNobodyListens) {
  const LoopbackPort port(PortUse::kTaken);
  EXPECT_FALSE(IsServedHere(At("127.0.0.1", port.number())));
}

TEST(IsServedHere, IsNotWhereSomebodyListensAtAnotherAddress) {
  const LoopbackPort port(PortUse::kListening, "127.0.0.2");
  EXPECT_FALSE(IsServedHere(At("127.0.0.3", port.number())));
  ResolvedEndpoint of_another = At("127.0.0.2", port.number());
  of_another.is_local = false;
  EXPECT_FALSE(IsServedHere(of_another));
}

TEST(IsServedHere, IsWhereSomebodyListensAtAllAddresses) {
  const LoopbackPort port(PortUse::kListening, "::");
  EXPECT_TRUE(IsServedHere(At("127.0.0.1", port.number())));
  EXPECT_FALSE(HasBeenConnectedTo(port));
}

}  // namespace
}  // namespace muster::launcher

#include "agent/machine/socket_owner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "asio/io_context.hpp"

namespace muster::agent {
namespace {

using asio::ip::tcp;

// Listens at `here` and connects to `there`, which is the same or its IPv6 form.
std::optional<uid_t> OwnerOfAConnection(const char* here, const char* there) {
  asio::io_context loop;
  tcp::acceptor acceptor(loop, tcp::endpoint(asio::ip::make_address(here), 0));
  tcp::socket client(loop);
  client.connect({asio::ip::make_address(there), acceptor.local_endpoint().port()});
  const tcp::socket server = acceptor.accept();
  return OwnerOfPeer(server.remote_endpoint(), server.local_endpoint());
}

TEST(OwnerOfPeer, IsTheUserWhoConnected) {
  const std::optional<uid_t> owner = OwnerOfAConnection("127.0.0.1", "127.0.0.1");
  if (!owner) GTEST_SKIP() << "this kernel does not tell whose a socket is (sock_diag)";
  EXPECT_EQ(*owner, ::geteuid());
}

TEST(OwnerOfPeer, IsFoundBehindAnIpv6SocketToo) {
  if (::access("/proc/net/if_inet6", F_OK) != 0) GTEST_SKIP() << "no IPv6 here";
  if (!OwnerOfAConnection("127.0.0.1", "127.0.0.1")) GTEST_SKIP() << "no sock_diag here";
  EXPECT_EQ(OwnerOfAConnection("127.0.0.1", "::ffff:127.0.0.1"), ::geteuid());
}

TEST(OwnerOfPeer, IsNotKnownOfAConnectionThatIsNotThere) {
  const auto address = asio::ip::make_address("127.0.0.1");
  EXPECT_EQ(OwnerOfPeer({address, 1}, {address, 2}), std::nullopt);
}

}  // namespace
}  // namespace muster::agent

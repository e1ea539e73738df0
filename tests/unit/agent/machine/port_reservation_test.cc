#include "agent/machine/port_reservation.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr_in6 AnyV6(int port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  return address;
}

bool HasV6() {
  return UniqueFd(socket(AF_INET6, SOCK_STREAM, 0)).get() >= 0 &&
         PortReservation::Reserve("::1", 1, {}).ok();
}

// What a worker's server does. Errno, or 0 if it listens.
template <typename Address>
int TryListen(const Address& address, bool reuse, UniqueFd* keep = nullptr) {
  UniqueFd fd(socket(reinterpret_cast<const sockaddr*>(&address)->sa_family,
                     SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (reuse) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return errno;
  if (listen(fd.get(), 16) != 0) return errno;
  if (keep != nullptr) *keep = std::move(fd);
  return 0;
}

PortReservation ReserveOne(const std::string& address = "127.0.0.1") {
  auto reservation = PortReservation::Reserve(address, 1, {});
  EXPECT_TRUE(reservation.ok()) << reservation.status();
  return *std::move(reservation);
}

TEST(PortReservation, GivesDifferentPortsOfTheKernelsChoice) {
  const auto reservation = PortReservation::Reserve("127.0.0.1", 5, {});
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  const std::set<int> ports(reservation->ports().begin(), reservation->ports().end());
  EXPECT_EQ(ports.size(), 5u);
  EXPECT_GT(*ports.begin(), 0);
}

TEST(PortReservation, LetsAWorkerListenThatSetsReuseAddr) {
  const PortReservation reservation = ReserveOne();
  EXPECT_EQ(TryListen(Loopback(reservation.ports()[0]), true), 0);
}

// PyTorch's TCPStore listens on the wildcard of both families.
TEST(PortReservation, LetsAWorkerListenOnTheWildcardToo) {
  if (!HasV6()) GTEST_SKIP() << "no IPv6 here";
  const PortReservation v4 = ReserveOne("127.0.0.1");
  EXPECT_EQ(TryListen(AnyV6(v4.ports()[0]), true), 0);
  const PortReservation v6 = ReserveOne("[::1]");
  EXPECT_EQ(TryListen(AnyV6(v6.ports()[0]), true), 0);
  const PortReservation any = ReserveOne("");
  EXPECT_EQ(TryListen(AnyV6(any.ports()[0]), true), 0);
  EXPECT_EQ(TryListen(Loopback(any.ports()[0]), true), 0);
}

TEST(PortReservation, KeepsOthersAway) {
  const PortReservation reservation = ReserveOne();
  EXPECT_EQ(TryListen(Loopback(reservation.ports()[0]), false), EADDRINUSE);
}

TEST(PortReservation, GivesAPortToOneReservationOnly) {
  const PortReservation reservation = ReserveOne();
  const int port = reservation.ports()[0];
  const auto second = PortReservation::ReserveExact("127.0.0.1", port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("in use by a process that holds it without listening"));
}

TEST(PortReservation, GivesItsPortsBackOnRelease) {
  PortReservation reservation = ReserveOne();
  reservation.Release();
  EXPECT_TRUE(PortReservation::ReserveExact("127.0.0.1", reservation.ports()[0]).ok());
}

TEST(PortReservation, PassesOverPortsOfTheRangeThatAreInUse) {
  const PortReservation first = ReserveOne();
  const int port = first.ports()[0];
  if (port > 65500) GTEST_SKIP() << "the kernel chose the last ports";
  const auto second = PortReservation::Reserve("127.0.0.1", 1, {port, port + 30});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_GT(second->ports()[0], port);
}

TEST(PortReservation, NamesARangeThatIsExhausted) {
  const PortReservation first = ReserveOne();
  const int port = first.ports()[0];
  const auto second = PortReservation::Reserve("127.0.0.1", 1, {port, port});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat(port, "-", port)));
}

TEST(PortReservation, NamesTheHolderOfAnExactPort) {
  UniqueFd listener;
  int port;
  {
    const PortReservation reservation = ReserveOne();
    port = reservation.ports()[0];
    ASSERT_EQ(TryListen(Loopback(port), true, &listener), 0);
  }
  const auto taken = PortReservation::ReserveExact("127.0.0.1", port);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(taken.status().message()),
      HasSubstr(absl::StrCat("port ", port, " on 127.0.0.1 is in use by pid ", getpid(), " (")));
}

// A restarted job must get its port although connections of the last round are still in TIME_WAIT.
TEST(PortReservation, TakesAPortThatOnlyOldConnectionsHold) {
  int port;
  UniqueFd listener;
  {
    const PortReservation reservation = ReserveOne();
    port = reservation.ports()[0];
    ASSERT_EQ(TryListen(Loopback(port), true, &listener), 0);
  }
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  UniqueFd server(accept(listener.get(), nullptr, nullptr));
  ASSERT_TRUE(server);
  server.reset();
  client.reset();
  listener.reset();
  ASSERT_EQ(TryListen(Loopback(port), false), EADDRINUSE) << "no connection was left in TIME_WAIT";
  const auto reservation = PortReservation::ReserveExact("127.0.0.1", port);
  EXPECT_TRUE(reservation.ok()) << reservation.status();
}

TEST(PortReservation, RefusesAddressesItCannotUse) {
  EXPECT_EQ(PortReservation::Reserve("localhost", 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto foreign = PortReservation::Reserve("192.0.2.1", 1, {});
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(foreign.status().message()),
              HasSubstr("192.0.2.1 is not an address of this machine"));
}

TEST(PortReservation, RefusesRangesAndPortsThatAreNone) {
  EXPECT_EQ(PortReservation::Reserve("127.0.0.1", 1, {5000, 4000}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PortReservation::Reserve("127.0.0.1", 1, {1, 70000}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PortReservation::ReserveExact("127.0.0.1", 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PortReservation::ReserveExact("127.0.0.1", 65536).status().code(),
            absl::StatusCode::kInvalidArgument);
}

constexpr char kProcNetTcp[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n"
    "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 "
    "34567 1 0 100 0 0 10 0\n"
    "   1: 0100007F:733D 0100007F:9C40 06 00000000:00000000 03:000017A0 00000000     0        0 0 "
    "3 0\n"
    "   2: 0100007F:9C40 0100007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 "
    "34568 1 0 20 4 30 10 -1\n";

TEST(FindPortUses, ReadsAListener) {
  EXPECT_THAT(FindPortUses(kProcNetTcp, 29500),
              testing::ElementsAre(PortUse{.listens = true, .inode = 34567, .uid = 1001}));
}

TEST(FindPortUses, TellsWhatAnOldConnectionLeftBehind) {
  EXPECT_THAT(FindPortUses(kProcNetTcp, 29501), testing::ElementsAre(PortUse{.is_remnant = true}));
}

TEST(FindPortUses, ReadsIpv6LinesAndOnlyLocalPorts) {
  EXPECT_THAT(
      FindPortUses(
          "  0: 00000000000000000000000000000000:733C 00000000000000000000000000000000:0000 0A "
          "00000000:00000000 00:00000000 00000000     0        0 77 1\n",
          29500),
      testing::ElementsAre(PortUse{.listens = true, .inode = 77}));
  EXPECT_THAT(FindPortUses(kProcNetTcp, 22), testing::IsEmpty());
}

TEST(DescribePortHolder, IsEmptyForAPortThatNobodyHas) {
  PortReservation reservation = ReserveOne();
  EXPECT_EQ(DescribePortHolder(reservation.ports()[0]), "");
}

}  // namespace
}  // namespace muster::agent

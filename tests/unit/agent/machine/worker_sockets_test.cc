#include "agent/machine/worker_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kHeader[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n";

TEST(FindConnectionsTo, ReadsEstablishedConnectionsToThePortInBothFamilies) {
  // 10.0.0.7:40312 -> 10.0.0.1:29500
  const std::string text =
      absl::StrCat(kHeader,
                   "   0: 0700000A:9D78 0100000A:733C 01 00000000:00000000 00:00000000 "
                   "00000000  1000        0 77 1 0 20 4 30 10 -1\n");
  EXPECT_THAT(FindConnectionsTo(text, 29500), ElementsAre(LocalSocket{77, "10.0.0.7", 40312}));
  EXPECT_THAT(FindConnectionsTo(text, 29501), IsEmpty());
  // ::1 and an IPv4 address that is mapped
  const std::string six = absl::StrCat(
      kHeader,
      "   0: 00000000000000000000000001000000:9D78 00000000000000000000000001000000:733C 01 "
      "00000000:00000000 00:00000000 00000000  1000        0 78 1 0 20 4 30 10 -1\n"
      "   1: 0000000000000000FFFF00000700000A:9D79 0000000000000000FFFF00000100000A:733C 01 "
      "00000000:00000000 00:00000000 00000000  1000        0 79 1 0 20 4 30 10 -1\n");
  EXPECT_THAT(FindConnectionsTo(six, 29500),
              ElementsAre(LocalSocket{78, "::1", 40312}, LocalSocket{79, "10.0.0.7", 40313}));
}

TEST(FindConnectionsTo, PassesOverListenersRemnantsAndWhatItCannotRead) {
  const std::string text =
      absl::StrCat(kHeader,
                   "   0: 0700000A:9D78 0100000A:733C 0A 0:0 00:0 0  1000  0 77 1\n"
                   "   1: 0700000A:9D78 0100000A:733C 06 0:0 00:0 0  1000  0 0 1\n"
                   "   2: 0700000A 0100000A:733C 01 0:0 00:0 0  1000  0 77 1\n"
                   "   3: zzzz:9D78 0100000A:733C 01 0:0 00:0 0  1000  0 77 1\n"
                   "nonsense\n");
  EXPECT_THAT(FindConnectionsTo(text, 29500), IsEmpty());
}

TEST(FindListeners, ReadsThoseOfAPortAtAnyAddress) {
  const std::string text =
      absl::StrCat(kHeader,
                   "   0: 0100007F:733C 00000000:0000 0A 0:0 00:0 0  1000  0 77 1\n"
                   "   1: 00000000:733C 00000000:0000 0A 0:0 00:0 0  1000  0 78 1\n"
                   "   2: 0100007F:733D 00000000:0000 0A 0:0 00:0 0  1000  0 79 1\n"
                   "   3: 0100007F:733C 0100007F:9D78 01 0:0 00:0 0  1000  0 80 1\n");
  EXPECT_THAT(FindListeners(text, 29500),
              ElementsAre(LocalSocket{77, "127.0.0.1", 29500}, LocalSocket{78, "0.0.0.0", 29500}));
}

TEST(FindConnectionsTo, TellsAConnectionThatHasNoAnswerYet) {
  const std::string text =
      absl::StrCat(kHeader, "   0: 0700000A:9D78 0100000A:733C 02 0:1 01:60 2  1000  0 77 1\n");
  EXPECT_THAT(FindConnectionsTo(text, 29500), IsEmpty());
  EXPECT_THAT(FindConnectionsTo(text, 29500, TcpState::kSynSent),
              ElementsAre(LocalSocket{77, "10.0.0.7", 40312}));
}

// A queue of one that is full: what comes then has no answer.
TEST(LookAtConnecting, TellsAServedPortFromOneThatDoesNotAnswerAndFromNone) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int port = ntohs(address.sin_port);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_NE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(LookAtConnecting({::getpid()}, port)[0], Connecting::kRefused);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  client = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(LookAtConnecting({::getpid()}, port)[0], Connecting::kConnected);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(client.get());
    const UniqueFd second(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const UniqueFd third(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(second.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::close(second.get());
    ::connect(third.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::_exit(LookAtConnecting({::getpid()}, port)[0] == Connecting::kUnanswered ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(LookAtConnecting({child}, port)[0], Connecting::kGone);
}

TEST(FindWorkerSockets, FindsTheConnectionOfAGrandchild) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);

  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      const int client = ::socket(AF_INET, SOCK_STREAM, 0);
      char end;
      if (::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
        (void)!::read(client, &end, 1);  // until the test closes its end
      }
      ::_exit(0);
    }
    ::waitpid(grandchild, nullptr, 0);
    ::_exit(0);
  }
  sockaddr_in peer{};
  length = sizeof peer;
  UniqueFd accepted(::accept(listener.get(), reinterpret_cast<sockaddr*>(&peer), &length));
  ASSERT_TRUE(accepted);

  const std::vector<pid_t> workers = {::getpid() + 1000000, child};
  const std::vector<WorkerSocket> found = FindWorkerSockets(workers, ntohs(address.sin_port));
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].worker, 1);
  EXPECT_EQ(found[0].address, "127.0.0.1");
  EXPECT_EQ(found[0].port, ntohs(peer.sin_port));

  accepted.reset();
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace muster::agent

// The store over real sockets of this machine. Its commands: torch_store_test.cc.
#include "agent/torch_store/torch_store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <vector>

#include "asio/buffer.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "tests/support/status_matchers.h"
#include "tests/unit/agent/torch_store/store_bytes.h"

namespace muster::agent {
namespace {

using asio::ip::tcp;
using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kPatienceSeconds = 30;

std::unique_ptr<TorchStoreServer> Serve(const std::string& host, int port = 0,
                                        TorchStoreSettings settings = {}) {
  auto server =
      TorchStoreServer::Start({.host = host, .port = port, .settings = std::move(settings)});
  EXPECT_THAT(server, IsOk());
  return server.ok() ? *std::move(server) : nullptr;
}

class Client {
 public:
  Client(const std::string& address, int port) : socket_(loop_) {
    asio::error_code error;
    socket_.connect(tcp::endpoint(asio::ip::make_address(address), port), error);
    is_connected_ = !error;
    const timeval patience{.tv_sec = kPatienceSeconds};
    if (is_connected_) {
      ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
  }
  bool is_connected() const { return is_connected_; }
  void Send(const std::string& bytes) { asio::write(socket_, asio::buffer(bytes)); }
  // Empty if the connection ends first.
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    asio::error_code error;
    asio::read(socket_, asio::buffer(bytes), error);
    return error ? "" : bytes;
  }
  bool IsCut() {
    char byte;
    return ::recv(socket_.native_handle(), &byte, 1, 0) <= 0 && errno != EAGAIN;
  }

 private:
  asio::io_context loop_;
  tcp::socket socket_;
  bool is_connected_ = false;
};

TEST(TorchStoreServer, AnswersOneClientWhenAnotherSetsWhatItWaitsFor) {
  const auto server = Serve("127.0.0.1");
  Client waiting("127.0.0.1", server->port()), setting("127.0.0.1", server->port());
  waiting.Send(Validate() + WaitBytes({"k"}));
  setting.Send(Validate() + SetBytes("k", "v"));
  EXPECT_EQ(waiting.Read(1), Byte(0));
  waiting.Send(Byte(kGetCode) + Text("k"));
  EXPECT_EQ(waiting.Read(9), Text("v"));
}

TEST(TorchStoreServer, CarriesLargeValuesBothWays) {
  const auto server = Serve("127.0.0.1");
  Client client("127.0.0.1", server->port());
  const std::string value(6 << 20, 'x');
  client.Send(Validate() + SetBytes("k", value) + Byte(kGetCode) + Text("k"));
  EXPECT_EQ(client.Read(8 + value.size()), Text(value));
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Copied for each of them, the replies alone would be 800 MiB.
TEST(TorchStoreServer, AnswersManyReadersOfALargeValueInTheMemoryOfOne) {
  constexpr size_t kValueBytes = size_t{8} << 20;
  const auto server = Serve("127.0.0.1");
  Client setting("127.0.0.1", server->port());
  setting.Send(Validate() + SetBytes("k", std::string(kValueBytes, 'x')) + AddBytes("n", 1));
  EXPECT_EQ(setting.Read(8), Number<int64_t>(1));
  const int64_t before = ResidentBytes();
  std::vector<std::unique_ptr<Client>> readers;
  for (int i = 0; i < 100; ++i) {
    readers.push_back(std::make_unique<Client>("127.0.0.1", server->port()));
    readers.back()->Send(Validate() + Byte(kGetCode) + Text("k"));
    ASSERT_EQ(readers.back()->Read(8), Number<uint64_t>(kValueBytes));
  }
  EXPECT_LT(ResidentBytes() - before, int64_t{200} << 20);
  for (const auto& reader : readers) EXPECT_EQ(reader->Read(kValueBytes).size(), kValueBytes);
}

// The questions come in one piece; the answers are more than a client may leave unread at once.
TEST(TorchStoreServer, AnswersAClientThatReadsSlowlyWithoutMakingAllItsRepliesAtOnce) {
  constexpr size_t kValueBytes = size_t{4} << 20;
  constexpr int kReplies = 40;
  const auto server = Serve("127.0.0.1");
  Client client("127.0.0.1", server->port());
  client.Send(Validate() + SetBytes("k", std::string(kValueBytes, 'x')));
  std::string questions;
  for (int i = 0; i < kReplies; ++i) questions += Byte(kGetCode) + Text("k");
  client.Send(questions);
  for (int i = 0; i < kReplies; ++i) {
    ASSERT_EQ(client.Read(8 + kValueBytes).size(), 8 + kValueBytes) << i;
  }
}

// A process of another user of this machine: it connects, and says whether it is answered.
bool IsServedAs(uid_t user, int port) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(user, user, user) != 0) ::_exit(3);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const timeval patience{.tv_sec = kPatienceSeconds};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ::_exit(3);
    const char request[] = "\0\xce\xf7\x85\x3c\x07";  // VALIDATE, GETNUMKEYS
    char reply[8];
    const bool is_sent = ::send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0;
    ::_exit(is_sent && ::recv(fd, reply, sizeof reply, MSG_WAITALL) == sizeof reply ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(TorchStoreServer, RefusesAnotherUserOfThisMachineWhereNodesAloneAreServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kOther = 54321;
  const auto open = Serve("127.0.0.1");
  EXPECT_TRUE(IsServedAs(kOther, open->port()));
  const auto closed = Serve("127.0.0.1", 0, {.clients = StoreClients::kNodes});
  EXPECT_FALSE(IsServedAs(kOther, closed->port()));
  EXPECT_TRUE(IsServedAs(::geteuid(), closed->port()));
}

TEST(TorchStoreServer, ListensOnItsAddressAndLoopbackAlone) {
  const auto server = Serve("127.0.0.2");
  EXPECT_TRUE(Client("127.0.0.2", server->port()).is_connected());
  EXPECT_TRUE(Client("127.0.0.1", server->port()).is_connected());
  EXPECT_FALSE(Client("127.0.0.3", server->port()).is_connected());
}

TEST(TorchStoreServer, ListensEverywhereIfTheAddressIsNotOfThisMachine) {
  const auto server = Serve("192.0.2.1");  // of a network for documentation
  EXPECT_TRUE(Client("127.0.0.3", server->port()).is_connected());
}

TEST(TorchStoreServer, CutsWhoSpeaksAnotherProtocolAndServesTheOthers) {
  const auto server = Serve("127.0.0.1");
  Client other("127.0.0.1", server->port()), client("127.0.0.1", server->port());
  other.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(other.IsCut());
  client.Send(Validate() + AddBytes("n", 3));
  EXPECT_EQ(client.Read(8), Number<int64_t>(3));
}

TEST(TorchStoreServer, LeavesNothingOfARoundInTheNextOnTheSamePort) {
  auto server = Serve("127.0.0.1");
  const int port = server->port();
  Client old("127.0.0.1", port);
  old.Send(Validate() + AddBytes("n", 3));
  EXPECT_EQ(old.Read(8), Number<int64_t>(3));
  server.reset();
  EXPECT_TRUE(old.IsCut());

  server = Serve("127.0.0.1", port);
  Client next("127.0.0.1", port);
  next.Send(Validate() + AddBytes("n", 1));
  EXPECT_EQ(next.Read(8), Number<int64_t>(1));
}

TEST(TorchStoreServer, AnswersWhoIsMissing) {
  const auto server = Serve("127.0.0.1");
  std::promise<size_t> answered;
  server->AskWhoIsMissing([&](const auto& gatherings) { answered.set_value(gatherings.size()); });
  auto answer = answered.get_future();
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(kPatienceSeconds)), std::future_status::ready);
  EXPECT_EQ(answer.get(), 0u);
}

TEST(TorchStoreServer, SaysThatThePortIsTaken) {
  const auto first = Serve("127.0.0.1");
  EXPECT_THAT(TorchStoreServer::Start({.host = "127.0.0.1", .port = first->port()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot serve PyTorch's store on 127.0.0.1 port")));
}

}  // namespace
}  // namespace muster::agent

// Connections between ranks against what is not a rank, or one that ends at once.
#include "worker_runtime/comm/gloo/gloo_mesh.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "proto/io/unique_fd.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/memory_store.h"

namespace {

// While it is set, a connection has no peer any more by the time its name is asked for: what Gloo
// sees of one that was reset at once.
std::atomic<bool> peers_are_gone = false;
// Called once, by the thread that catches the next exception, before it does anything about it.
std::atomic<std::function<void()>*> before_catch = nullptr;

}  // namespace

// Both in place of the libraries' own, for Gloo as well.
extern "C" int getpeername(int fd, sockaddr* address, socklen_t* length) noexcept {
  if (!peers_are_gone) return static_cast<int>(syscall(SYS_getpeername, fd, address, length));
  errno = ENOTCONN;
  return -1;
}

extern "C" void* __cxa_begin_catch(void* exception) noexcept {
  static const auto own = reinterpret_cast<void* (*)(void*)>(dlsym(RTLD_NEXT, "__cxa_begin_catch"));
  if (const std::function<void()>* act = before_catch.exchange(nullptr); act != nullptr) (*act)();
  return own(exception);
}

namespace muster::comm {
namespace {

using muster::testing::IsOk;
using muster::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kRanks = 64;

enum class End : uint8_t { kReset, kGarbage };

// Connects to what a rank published and ends the connection: without a word, or after bytes that
// are no message of a rank.
void ConnectAndEnd(const std::string& published, End end) {
  sockaddr_in address;
  ASSERT_GE(published.size(), sizeof address);
  std::memcpy(&address, published.data(), sizeof address);
  const UniqueFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_GE(connection.get(), 0);
  ASSERT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  if (end == End::kGarbage) {
    const std::string garbage(4096, '\xff');
    send(connection.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    return;
  }
  const linger reset = {.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
}

class StrangeConnections : public ::testing::TestWithParam<End> {};

// What Gloo finds wrong with a connection it throws on its own thread, where it would end the
// process.
TEST_P(StrangeConnections, EndThemselvesAndNotTheProcess) {
  auto store = std::make_shared<MemoryStore>();
  const auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  const auto mesh = GlooMesh::Create(*device, store,
                                     {.size = kRanks,
                                      .group = "world",
                                      .prefix = "mesh",
                                      .deadline = MonoNow() + absl::Minutes(1)});
  ASSERT_THAT(mesh, IsOk());
  std::vector<int> peers(kRanks - 1);
  std::iota(peers.begin(), peers.end(), 1);

  WaitPoint point;
  absl::Status reached;
  std::thread reaching([&] { reached = (*mesh)->Reach(peers, point); });
  for (const int peer : peers) {
    const auto published = store->Wait(absl::StrCat("mesh/0/", peer), MonoNow() + absl::Minutes(1));
    ASSERT_THAT(published, IsOk());
    ConnectAndEnd(*published, GetParam());
  }
  point.Interrupt();
  reaching.join();
  EXPECT_FALSE(reached.ok());

  // The device serves on.
  const auto connect = [&](int rank) {
    const auto own = GlooMesh::Create(*device, store,
                                      {.rank = rank,
                                       .size = 2,
                                       .group = "world",
                                       .prefix = "next",
                                       .deadline = MonoNow() + absl::Minutes(1)});
    ASSERT_THAT(own, IsOk());
    WaitPoint own_point;
    EXPECT_THAT((*own)->Reach({1 - rank}, own_point), IsOk());
    EXPECT_EQ((*own)->num_connections(), 1);
    // Both must have connected before either closes: closing resets.
    ASSERT_THAT(store->Set(absl::StrCat("done/", rank), "", MonoNow()), IsOk());
    ASSERT_THAT(store->Wait(absl::StrCat("done/", 1 - rank), MonoNow() + absl::Minutes(1)), IsOk());
  };
  std::thread other([&] { connect(1); });
  connect(0);
  other.join();
}

// Another thread may close a connection between Gloo's error and its end.
TEST(StrangeConnection, MayBeClosedAtTheMomentItFails) {
  auto store = std::make_shared<MemoryStore>();
  const auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  const auto mesh = GlooMesh::Create(
      *device, store,
      {.size = 2, .group = "world", .prefix = "mesh", .deadline = MonoNow() + absl::Minutes(1)});
  ASSERT_THAT(mesh, IsOk());
  WaitPoint point;
  absl::Status reached;
  std::thread reaching([&] { reached = (*mesh)->Reach({1}, point); });
  const auto published = store->Wait("mesh/0/1", MonoNow() + absl::Minutes(1));
  ASSERT_THAT(published, IsOk());

  // It may have to wait until the connection has failed, and the connection never waits for it.
  absl::Notification closed;
  std::thread closing;
  std::function<void()> close = [&] {
    closing = std::thread([&] {
      (*mesh)->Close();
      closed.Notify();
    });
    closed.WaitForNotificationWithTimeout(absl::Milliseconds(100));
  };
  before_catch = &close;
  peers_are_gone = true;
  ConnectAndEnd(*published, End::kReset);
  ASSERT_TRUE(closed.WaitForNotificationWithTimeout(absl::Minutes(1)));
  closing.join();
  peers_are_gone = false;

  point.Interrupt();
  reaching.join();
  EXPECT_FALSE(reached.ok());
}

// Where a rank has ended as soon as it had connected, its peer's error would be the first of the
// job and hide the reason.
TEST(ConnectControl, TellsOfAPeerThatIsGoneAfterThePeerHadTimeToSayWhy) {
  auto store = std::make_shared<MemoryStore>();
  const auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  absl::Status status;
  MonoTime failed;
  std::thread rank([&] {
    status = ConnectControl(*device, store,
                            {.rank = 1,
                             .size = 2,
                             .group = "world",
                             .prefix = "control",
                             .deadline = MonoNow() + absl::Minutes(1)})
                 .status();
    failed = MonoNow();
  });
  auto address = store->Wait("control/1/0", MonoNow() + absl::Minutes(1));
  ASSERT_THAT(address, IsOk());
  // A port where nobody listens, below that of the rank, which therefore is the one to connect.
  const in_port_t port = htons(256);
  std::memcpy(address->data() + offsetof(sockaddr_in, sin_port), &port, sizeof port);
  const MonoTime gone = MonoNow();
  ASSERT_THAT(store->Set("control/0/1", *address, MonoNow()), IsOk());
  rank.join();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot connect with rank 0")));
  EXPECT_GE(failed - gone, kControlReasonTime);
}

INSTANTIATE_TEST_SUITE_P(Each, StrangeConnections, ::testing::Values(End::kReset, End::kGarbage),
                         [](const auto& info) {
                           return info.param == End::kReset ? "Reset" : "Garbage";
                         });

}  // namespace
}  // namespace muster::comm

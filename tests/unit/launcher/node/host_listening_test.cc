#include "launcher/node/host_listening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "asio/io_context.hpp"
#include "tests/support/loopback_port.h"
#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using testing::IsOkAndHolds;
using testing::LoopbackPort;
using testing::PortUse;
using testing::StatusIs;

class ListenAsHostTest : public ::testing::Test {
 protected:
  absl::StatusOr<int> Listen(int port) {
    return ListenAsHost({.host = "localhost",
                         .address = "127.0.0.1",
                         .port = port,
                         .is_local = true,
                         .is_loopback = true},
                        /*seed=*/1, *server_);
  }

  asio::io_context loop_;
  const std::unique_ptr<rendezvous::RendezvousServer> server_ =
      rendezvous::RendezvousServer::Create(loop_, {.owners = {{.secret = "secret"}}});
};

TEST_F(ListenAsHostTest, LeavesAPortToWhoListensThere) {
  const LoopbackPort port(PortUse::kListening);
  EXPECT_THAT(Listen(port.number()), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(ListenAsHostTest, GetsAPortThatNobodyListensAtOnceItIsFree) {
  std::optional<LoopbackPort> port(std::in_place, PortUse::kTaken);
  const int number = port->number();
  std::thread holder([&] {
    absl::SleepFor(absl::Milliseconds(200));
    port.reset();
  });
  EXPECT_THAT(Listen(number), IsOkAndHolds(number));
  holder.join();
}

}  // namespace
}  // namespace muster::launcher

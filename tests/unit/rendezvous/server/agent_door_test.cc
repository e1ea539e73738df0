#include "rendezvous/server/agent_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "asio/ip/tcp.hpp"
#include "proto/io/descriptors.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AgentDoorTest : public ::testing::Test {
 protected:
  std::unique_ptr<AgentDoor> MakeDoor(std::vector<OwnerKey> owners = {{"", "a secret"}},
                                      int reserved_descriptors = 128) {
    return std::make_unique<AgentDoor>(
        loop_, jobs_,
        SessionOptions{.term = ServerTerm(1),
                       .owners = std::move(owners),
                       .handshake_timeout = absl::Milliseconds(200),
                       .on_refused =
                           [this](const std::string&, const absl::Status& why) {
                             refused_.emplace_back(why.message());
                           }},
        reserved_descriptors);
  }
  static int Listen(AgentDoor& door) {
    const auto port = door.Listen("127.0.0.1", 0);
    EXPECT_TRUE(port.ok()) << port.status();
    return port.value_or(0);
  }

  std::vector<std::string> refused_;
  asio::io_context loop_;
  JobLoop jobs_{loop_, {.term = ServerTerm(1)}, [](const JobKey&, const Announce&) {}, nullptr};
};

TEST_F(AgentDoorTest, SaysThatThePortIsTaken) {
  const auto first = MakeDoor(), second = MakeDoor();
  EXPECT_THAT(second->Listen("127.0.0.1", Listen(*first)),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(AgentDoorTest, RefusesAnAddressOfAnotherMachine) {
  EXPECT_THAT(MakeDoor()->Listen("192.0.2.1", 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(AgentDoorTest, RefusesANameThatCannotBeResolved) {
  EXPECT_THAT(MakeDoor()->Listen("no such name", 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(AgentDoorTest, ListensOnTheGivenAddressOnly) {
  const auto first = MakeDoor(), second = MakeDoor();
  EXPECT_TRUE(second->Listen("127.0.0.2", Listen(*first)).ok());
}

TEST_F(AgentDoorTest, ListensOnItsPortAtAFurtherAddress) {
  const auto first = MakeDoor(), second = MakeDoor();
  EXPECT_THAT(first->ListenAlso("127.0.0.2"), StatusIs(absl::StatusCode::kFailedPrecondition));
  const int port = Listen(*first);
  EXPECT_TRUE(first->ListenAlso("127.0.0.2").ok());
  EXPECT_THAT(second->Listen("127.0.0.2", port), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(AgentDoorTest, ListensOnceAndForAnOwner) {
  const auto door = MakeDoor();
  Listen(*door);
  EXPECT_THAT(door->Listen("127.0.0.1", 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(MakeDoor({})->Listen("127.0.0.1", 0),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(AgentDoorTest, StaysShutWhereTooFewDescriptorsAreLeft) {
  const auto door = MakeDoor({{"", "a secret"}}, RaiseDescriptorLimit() - 31);
  EXPECT_THAT(door->Listen("127.0.0.1", 0),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -n")));
}

// As kubelets and load balancers do, every few seconds, with a FIN or with a reset.
TEST_F(AgentDoorTest, TellsOnceOfConnectionsThatAreClosedWithoutAWord) {
  const auto door = MakeDoor();
  const asio::ip::tcp::endpoint at(asio::ip::address_v4::loopback(),
                                   static_cast<asio::ip::port_type>(Listen(*door)));
  for (const bool resets : {false, true, false}) {
    asio::ip::tcp::socket prober(loop_);
    prober.connect(at);
    prober.set_option(asio::socket_base::linger(resets, 0));
    prober.close();
    loop_.run_for(std::chrono::milliseconds(200));
  }
  // Longer than a connection has for its first stream.
  loop_.run_for(std::chrono::milliseconds(3000));
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("closed the connection without a word")));
}

TEST_F(AgentDoorTest, EndsOnTheLoopWhetherOrNotItHasListened) {
  for (const bool listens : {false, true}) {
    auto door = MakeDoor();
    if (listens) Listen(*door);
    bool closed = false;
    door->Shutdown(absl::Seconds(60), [&] {
      closed = true;
      door.reset();
    });
    EXPECT_FALSE(closed);
    loop_.restart();
    loop_.poll();
    EXPECT_TRUE(closed);
  }
}

}  // namespace
}  // namespace muster::rendezvous

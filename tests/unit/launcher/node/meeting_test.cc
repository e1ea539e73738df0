// How a node meets the others: real servers and ports, no agents.
#include "launcher/node/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/loopback_port.h"
#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::LoopbackPort;
using ::testing::Not;
using testing::PortUse;

class MeetingTest : public ::testing::Test {
 protected:
  MeetingTest() {
    setup_.agent.spec.run_id = "job";
    setup_.agent.spec.authentication = false;
    setup_.agent.node.name = "node0";
  }
  void MeetAt(int port) {
    setup_.endpoint = ResolvedEndpoint{.host = "localhost",
                                       .address = "127.0.0.1",
                                       .port = port,
                                       .is_local = true,
                                       .is_loopback = true};
    setup_.may_host = true;
  }
  void MakeLink() {
    auto link = meeting_.MakeLink(setup_, {}, guardian_);
    ASSERT_THAT(link, IsOk());
    link_ = *std::move(link);
  }
  void End(bool awaits_late_nodes) {
    meeting_.End(awaits_late_nodes, [this] { has_ended_ = true; });
  }

  asio::io_context loop_;
  Placement placement_;
  NodeSetup setup_;
  agent::GuardianHandle guardian_;
  Meeting meeting_{loop_, placement_};
  std::unique_ptr<rendezvous::RendezvousLink> link_;
  bool has_ended_ = false;
};

TEST_F(MeetingTest, OfANodeAloneNeedsNoPort) {
  MakeLink();
  EXPECT_TRUE(setup_.agent.hosts_server);
  EXPECT_THAT(guardian_.death_notice, IsEmpty());
  meeting_.TellLeaving(SIGTERM, "nobody is there");
  End(/*awaits_late_nodes=*/true);
  loop_.run();
  EXPECT_TRUE(has_ended_);
}

TEST_F(MeetingTest, HostsWhereNobodyListens) {
  const LoopbackPort port;
  MeetAt(port.number());
  MakeLink();
  EXPECT_TRUE(setup_.agent.hosts_server);
  EXPECT_TRUE(IsServedHere(*setup_.endpoint));
  meeting_.TellLeaving(SIGTERM, "it goes");
  End(/*awaits_late_nodes=*/false);
  loop_.run();
  EXPECT_TRUE(has_ended_);
}

TEST_F(MeetingTest, GoesToWhoListensAndLeavesItsDeathToTheGuardian) {
  const LoopbackPort port(PortUse::kListening);
  MeetAt(port.number());
  MakeLink();
  EXPECT_FALSE(setup_.agent.hosts_server);
  EXPECT_THAT(setup_.agent.server, HasSubstr("has the port"));
  EXPECT_THAT(guardian_.death_notice, Not(IsEmpty()));
  End(/*awaits_late_nodes=*/true);
  EXPECT_TRUE(has_ended_) << "the server is another's";
}

TEST_F(MeetingTest, AwaitsNodesThatHaveNotComeUntilItIsToldNotTo) {
  placement_.expected_nodes = {"node0", "node1"};
  MakeLink();
  End(/*awaits_late_nodes=*/true);
  loop_.poll();
  EXPECT_FALSE(has_ended_);
  meeting_.EndNow();
  loop_.run();
  EXPECT_TRUE(has_ended_);
}

}  // namespace
}  // namespace muster::launcher

// What the guardian of an agent that was killed says to a server over the network.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

class AgentEndedTest : public ::testing::Test, public LoopWorld {
 protected:
  // A node that attends over the network, and joins.
  void Attend() {
    server_ = MakeServer();
    port_ = *server_->Listen("127.0.0.1", 0);
    agent_ = std::make_unique<GrpcLink>(loop(), LinkTo(port_, IncarnationOf(life_key_).value()));
    agent_->Open(heard_.Listener());
    agent_->SendReport(JoiningReport());
    ASSERT_TRUE(RunUntil([&] { return IsKnown(); }));
  }
  bool IsKnown() const {
    const JobState* state = server_->table().FindState({"", "j7"});
    return state != nullptr && state->nodes.contains(IncarnationOf(life_key_));
  }
  bool IsConnected() const {
    return server_->table().FindState({"", "j7"})->nodes.at(IncarnationOf(life_key_)).connected;
  }
  StopAnswer Say(const Key& life_key, LinkRole role = LinkRole::kPerson) {
    std::optional<StopAnswer> answer;
    Heard heard;
    GrpcLinkOptions options = LinkTo(port_, 99);
    options.role = role;
    GrpcLink link(loop(), std::move(options));
    link.Ask(AgentEnding{life_key}, [&](StopAnswer given) { answer = std::move(given); });
    link.Open(heard.Listener());
    RunUntil([&] { return answer.has_value() || !heard.downs.empty(); });
    return answer.value_or(StopAnswer{.status = absl::UnknownError("no answer")});
  }

  const Key life_key_ = DrawLifeKey();
  std::unique_ptr<RendezvousServer> server_;
  int port_ = 0;
  Heard heard_;
  std::unique_ptr<RendezvousLink> agent_;
};

TEST_F(AgentEndedTest, LosesTheNodeOnceItsStreamHasEnded) {
  Attend();
  EXPECT_TRUE(Say(life_key_).status.ok());
  EXPECT_TRUE(IsKnown()) << "its stream has not ended";
  agent_.reset();
  EXPECT_TRUE(RunUntil([&] { return !IsKnown(); }));
}

TEST_F(AgentEndedTest, LosesANodeWhoseStreamHasEnded) {
  Attend();
  agent_.reset();
  ASSERT_TRUE(RunUntil([&] { return !IsConnected(); }));
  EXPECT_TRUE(Say(life_key_).status.ok());
  EXPECT_FALSE(IsKnown());
}

TEST_F(AgentEndedTest, IsNotBelievedWithoutTheKeyOfThatLife) {
  Attend();
  agent_.reset();
  ASSERT_TRUE(RunUntil([&] { return !IsConnected(); }));
  Key other = life_key_;
  other[31] ^= 1;
  EXPECT_EQ(Say(other).status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(IsKnown());
}

TEST_F(AgentEndedTest, IsNotHeardFromAnAgent) {
  Attend();
  agent_.reset();
  ASSERT_TRUE(RunUntil([&] { return !IsConnected(); }));
  EXPECT_FALSE(Say(life_key_, LinkRole::kAgent).status.ok());
  EXPECT_TRUE(IsKnown());
}

}  // namespace
}  // namespace muster::rendezvous

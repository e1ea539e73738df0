// What a person asks of a server over the network, beside the agents.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

using ::testing::HasSubstr;

class StopRequestTest : public ::testing::Test, public LoopWorld {
 protected:
  // A job of one node that runs, whose agent is in the server's process.
  void RunJob() {
    server_ = MakeServer();
    port_ = *server_->Listen("127.0.0.1", 0);
    agent_ = server_->MakeLocalLink("j7", Incarnation(1));
    agent_->Open(heard_.Listener());
    agent_->SendReport(JoiningReport());
    ASSERT_TRUE(RunUntil([&] { return heard_.assignment() != nullptr; }));
    AgentReport running = JoiningReport(2);
    running.phase = AgentPhase::kRunning;
    running.round = Round(0);
    running.instance = heard_.assignment()->instance;
    agent_->SendReport(running);
  }
  GrpcLinkOptions Person(const std::string& secret = kSecret) {
    GrpcLinkOptions options = LinkTo(port_, 99, secret);
    options.role = LinkRole::kPerson;
    return options;
  }
  // The answer, or why the link has given up.
  StopAnswer Ask(GrpcLinkOptions options, const StopRequest& request) {
    std::optional<StopAnswer> answer;
    Heard heard;
    GrpcLink link(loop(), std::move(options));
    link.Ask(request, [&](StopAnswer given) { answer = std::move(given); });
    link.Open(heard.Listener());
    RunUntil([&] { return answer.has_value() || !heard.fatal.ok(); });
    return answer.value_or(StopAnswer{.status = heard.fatal});
  }
  bool IsStopping() const {
    const auto* at =
        heard_.directives.empty() ? nullptr : std::get_if<StopAt>(&heard_.directives.back().body);
    return at != nullptr;
  }

  std::unique_ptr<RendezvousServer> server_;
  int port_ = 0;
  Heard heard_;
  std::unique_ptr<RendezvousLink> agent_;
};

TEST_F(StopRequestTest, IsAnsweredAndCarriedOut) {
  RunJob();
  const StopAnswer answer = Ask(Person(), {.reason = "maintenance"});
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.text, HasSubstr("every rank leaves after the same step"));
  EXPECT_TRUE(RunUntil([&] { return IsStopping(); }));
}

TEST_F(StopRequestTest, NeedsTheSecret) {
  RunJob();
  EXPECT_EQ(Ask(Person(kOtherSecret), {}).status.code(), absl::StatusCode::kPermissionDenied);
  RunReady();
  EXPECT_FALSE(IsStopping());
}

TEST_F(StopRequestTest, OfAnotherJobIsAnsweredWithTheJobsThereAre) {
  RunJob();
  GrpcLinkOptions options = Person();
  options.run_id = "j8";
  const StopAnswer answer = Ask(options, {});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(answer.status.message()),
              ::testing::AllOf(HasSubstr("no job 'j8' runs here"), HasSubstr("j7")));
}

TEST_F(StopRequestTest, ToDrainTheServersHostIsRefused) {
  RunJob();
  const StopAnswer answer = Ask(Person(), {.node = "node1"});
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("node1 hosts the rendezvous"));
}

TEST_F(StopRequestTest, OfAnAgentEndsItsStream) {
  RunJob();
  GrpcLink link(loop(), LinkTo(port_, 99));
  Heard heard;
  link.Ask({}, [](StopAnswer) { ADD_FAILURE() << "answered"; });
  link.Open(heard.Listener());
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_FALSE(IsStopping());
}

TEST_F(StopRequestTest, APersonIsNoMember) {
  RunJob();
  GrpcLink link(loop(), Person());
  Heard heard;
  link.Open(heard.Listener());
  link.SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_TRUE(heard.directives.empty());
  EXPECT_EQ(server_->table().FindState({"", "j7"})->nodes.size(), 1u);
}

TEST_F(StopRequestTest, WaitsForAServerThatIsNotThereYet) {
  RunJob();
  agent_.reset();
  server_.reset();
  std::optional<StopAnswer> answer;
  Heard heard;
  GrpcLink link(loop(), Person());
  link.Ask({}, [&](StopAnswer given) { answer = std::move(given); });
  link.Open(heard.Listener());
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  server_ = MakeServer();
  ASSERT_TRUE(server_->Listen("127.0.0.1", port_).ok());
  ASSERT_TRUE(RunUntil([&] { return answer.has_value(); }));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kNotFound) << "its job is gone with it";
}

}  // namespace
}  // namespace muster::rendezvous

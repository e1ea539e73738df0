// What an observer sees of a server over the network, and what a hostile member can do to it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/status/status_page.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class InquiryTest : public ::testing::Test, public LoopWorld {
 protected:
  // A job of one node that runs, whose agent is elsewhere and answers with `body`.
  void RunJob(std::string body) {
    server_ = MakeServer();
    port_ = *server_->Listen("127.0.0.1", 0);
    agent_ = std::make_unique<GrpcLink>(loop(), LinkTo(port_, 1));
    LinkListener listener = heard_.Listener();
    listener.on_inquiry = [this, body](const Inquiry& inquiry) {
      asked_.push_back(inquiry);
      agent_->SendInquiryReply({inquiry.id, {.body = body}});
    };
    agent_->Open(std::move(listener));
    agent_->SendReport(JoiningReport());
    ASSERT_TRUE(RunUntil([&] { return heard_.assignment() != nullptr; }));
    AgentReport running = JoiningReport(2);
    running.phase = AgentPhase::kRunning;
    running.round = Round(0);
    running.instance = heard_.assignment()->instance;
    agent_->SendReport(running);
  }
  InquiryAnswer Ask(const Inquiry& inquiry, LinkRole role = LinkRole::kObserver,
                    const std::string& secret = kSecret) {
    GrpcLinkOptions options = LinkTo(port_, 99, secret);
    options.role = role;
    GrpcLink link(loop(), std::move(options));
    Heard heard;
    std::optional<InquiryAnswer> answer;
    LinkListener listener = heard.Listener();
    listener.on_inquiry_answer = [&](InquiryAnswer given) { answer = std::move(given); };
    link.Open(std::move(listener));
    RunUntil([&] { return heard.is_up || !heard.fatal.ok(); });
    if (!heard.fatal.ok()) return {.status = heard.fatal};
    link.SendInquiry(inquiry);
    RunUntil([&] { return answer.has_value() || !heard.downs.empty(); });
    return answer.value_or(InquiryAnswer{.status = absl::UnavailableError("no answer")});
  }

  std::unique_ptr<RendezvousServer> server_;
  int port_ = 0;
  Heard heard_;
  std::vector<Inquiry> asked_;
  std::unique_ptr<GrpcLink> agent_;
};

TEST_F(InquiryTest, OfTheStatusIsAnsweredByTheServer) {
  RunJob("");
  const InquiryAnswer answer = Ask({.id = 7});
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.id, 7u);
  const auto page = status::ParseStatusPage(answer.page);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->job, "j7");
  EXPECT_EQ(page->health.state, status::kHealthy);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(InquiryTest, OfTheJobsListsThem) {
  RunJob("");
  const auto list = status::ParseJobList(Ask({.kind = InquiryKind::kJobs}).page);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->jobs, SizeIs(1));
  EXPECT_EQ(list->jobs[0].job, "j7");
}

TEST_F(InquiryTest, OfStacksIsAnsweredByTheAgents) {
  RunJob("what they do");
  const InquiryAnswer answer = Ask({.kind = InquiryKind::kStacks, .rank = 0});
  ASSERT_THAT(answer.parts, SizeIs(1));
  EXPECT_EQ(answer.parts[0].body, "what they do");
  EXPECT_EQ(answer.parts[0].node, "node1");
  ASSERT_THAT(asked_, SizeIs(1));
  EXPECT_EQ(asked_[0].rank, 0);
}

TEST_F(InquiryTest, OfAJobThatIsNotKnownSaysSo) {
  RunJob("");
  EXPECT_EQ(Ask({.job = "j8"}).status, absl::NotFoundError("no job 'j8' is known here"));
}

TEST_F(InquiryTest, NeedsTheSecret) {
  RunJob("");
  EXPECT_EQ(Ask({}, LinkRole::kObserver, kOtherSecret).status.code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(InquiryTest, OfAPersonWhoMayStopJobsIsRefused) {
  RunJob("");
  EXPECT_FALSE(Ask({}, LinkRole::kPerson).status.ok());
}

TEST_F(InquiryTest, IsAnsweredWhateverAHostileMemberSends) {
  RunJob(std::string(kInquiryPartBytesMax + 1, 'x'));
  const InquiryAnswer answer = Ask({.kind = InquiryKind::kStacks});
  ASSERT_THAT(answer.parts, SizeIs(1));
  EXPECT_EQ(answer.parts[0].status.code(), absl::StatusCode::kResourceExhausted);
  // It is a member still: the job does not notice.
  EXPECT_TRUE(heard_.is_up);
  const auto page = status::ParseStatusPage(Ask({}).page);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->health.state, status::kHealthy);
}

TEST_F(InquiryTest, OfAnObserverChangesNothing) {
  RunJob("");
  GrpcLinkOptions options = LinkTo(port_, 98);
  options.role = LinkRole::kObserver;
  GrpcLink observer(loop(), std::move(options));
  Heard heard;
  observer.Open(heard.Listener());
  ASSERT_TRUE(RunUntil([&] { return heard.is_up; }));
  // Reports are for members: its stream ends.
  observer.SendReport(JoiningReport());
  EXPECT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  const auto page = status::ParseStatusPage(Ask({}).page);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(page->members, SizeIs(1));
}

}  // namespace
}  // namespace muster::rendezvous

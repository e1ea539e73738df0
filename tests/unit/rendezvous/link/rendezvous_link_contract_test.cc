// What every RendezvousLink does, whatever it runs over.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

enum class Kind { kLocal, kGrpcWithTls, kGrpcWithoutTls };

class RendezvousLinkContract : public ::testing::TestWithParam<Kind>, protected LoopWorld {
 protected:
  void SetUp() override {
    server_ = MakeServer({.tls = tls()});
    if (GetParam() != Kind::kLocal) {
      const auto port = server_->Listen("127.0.0.1", 0);
      ASSERT_TRUE(port.ok()) << port.status();
      port_ = *port;
    }
    link_ = MakeLink(1);
  }
  void TearDown() override {
    link_.reset();
    server_.reset();
  }

  TlsMode tls() const { return GetParam() == Kind::kGrpcWithoutTls ? TlsMode::kOff : TlsMode::kOn; }
  std::unique_ptr<RendezvousLink> MakeLink(uint64_t incarnation) {
    if (GetParam() == Kind::kLocal) return server_->MakeLocalLink("j7", Incarnation(incarnation));
    GrpcLinkOptions options = LinkTo(port_, incarnation);
    options.tls = tls();
    return std::make_unique<GrpcLink>(loop(), options);
  }
  const JobState* Job() const { return server_->table().FindState({"", "j7"}); }
  bool RunRoundZero() {
    link_->Open(heard_.Listener());
    link_->SendReport(JoiningReport());
    return RunUntil([this] { return heard_.assignment() != nullptr; });
  }
  template <typename Order>
  bool HasHeard() const {
    return std::any_of(heard_.orders.begin(), heard_.orders.end(),
                       [](const auto& order) { return std::holds_alternative<Order>(order); });
  }

  std::unique_ptr<RendezvousServer> server_;
  int port_ = 0;
  std::unique_ptr<RendezvousLink> link_;
  Heard heard_;
};

TEST_P(RendezvousLinkContract, SaysThatItIsUpAfterOpenAndNotInsideIt) {
  link_->Open(heard_.Listener());
  EXPECT_EQ(heard_.count(), 0u);
  EXPECT_TRUE(RunUntil([this] { return heard_.is_up; }));
}

TEST_P(RendezvousLinkContract, AnswersAReportWithADirective) {
  ASSERT_TRUE(RunRoundZero());
  EXPECT_EQ(heard_.assignment()->world_size, 1);
}

TEST_P(RendezvousLinkContract, SendsAReportThatWasGivenBeforeItWasUp) {
  link_->Open(heard_.Listener());
  link_->SendReport(JoiningReport());
  EXPECT_TRUE(RunUntil([this] { return !heard_.directives.empty(); }));
}

TEST_P(RendezvousLinkContract, AnswersEachStoreRequest) {
  ASSERT_TRUE(RunRoundZero());
  const Round round = heard_.assignment()->round;
  const Instance instance = heard_.assignment()->instance;
  link_->SendStoreRequest({1, round, StoreSet{"k", "v"}, instance});
  link_->SendStoreRequest({2, round, StoreGet{"k"}, instance});
  EXPECT_TRUE(heard_.replies.empty());
  ASSERT_TRUE(RunUntil([this] { return heard_.replies.size() == 2; }));
  EXPECT_EQ(heard_.replies[1].request_id, 2u);
  EXPECT_EQ(heard_.replies[1].values, std::vector<std::string>{"v"});
}

TEST_P(RendezvousLinkContract, CarriesTheWordsOfTheHangWatchAndItsOrders) {
  ASSERT_TRUE(RunRoundZero());
  AgentReport running = JoiningReport(2);
  running.phase = AgentPhase::kRunning;
  running.round = heard_.assignment()->round;
  running.instance = heard_.assignment()->instance;
  const hangs::NodeSummary silent{.round = running.round,
                                  .hang_timeout = absl::Minutes(10),
                                  .silent = {{0, 1, hangs::WatchPhase::kStep, absl::Seconds(10)}}};
  link_->SendWatchWord(silent);
  link_->SendReport(running);
  EXPECT_TRUE(heard_.orders.empty());
  ASSERT_TRUE(RunUntil([this] { return !heard_.orders.empty(); }));
  const hangs::AskDetails ask = std::get<hangs::AskDetails>(heard_.orders[0]);
  // Held by a debugger: it is asked again.
  link_->SendWatchWord(
      hangs::NodeDetails{.question = ask.question, .summary = silent, .is_held = true});
  ASSERT_TRUE(RunUntil([this] { return heard_.orders.size() > 1; }));
  EXPECT_GT(std::get<hangs::AskDetails>(heard_.orders[1]).question, ask.question);
}

// No report comes that would carry them.
TEST_P(RendezvousLinkContract, CarriesTheFirstSummaryOfARoundAndAnAbortAtOnce) {
  ASSERT_TRUE(RunRoundZero());
  const Round round = heard_.assignment()->round;
  link_->SendWatchWord(hangs::NodeSummary{
      .round = round, .silent = {{0, 1, hangs::WatchPhase::kStep, absl::Seconds(10)}}});
  EXPECT_TRUE(RunUntil([this] { return HasHeard<hangs::AskDetails>(); }));
  link_->SendWatchWord(hangs::RankAborted{round, 0});
  EXPECT_TRUE(RunUntil([this] { return HasHeard<hangs::AskLastCalls>(); }));
  link_->SendWatchWord(hangs::NodeLastCalls{.round = round, .aborted = {0}, .ranks = {}});
  EXPECT_TRUE(RunUntil([this] { return HasHeard<hangs::SayAborts>(); }));
}

TEST_P(RendezvousLinkContract, SendsWhatIsQueuedBeforeItCloses) {
  ASSERT_TRUE(RunRoundZero());
  AgentReport leaving = JoiningReport(2);
  leaving.phase = AgentPhase::kRunning;
  leaving.round = heard_.assignment()->round;
  leaving.instance = heard_.assignment()->instance;
  link_->SendReport(leaving);
  link_->Close(absl::Seconds(5), [this] { heard_.closed = true; });
  ASSERT_TRUE(RunUntil([this] { return heard_.closed; }));
  ASSERT_NE(Job(), nullptr);
  EXPECT_EQ(Job()->nodes.at(Incarnation(1)).report.sequence, 2u);
}

TEST_P(RendezvousLinkContract, TellsTheServerThatItHasClosed) {
  ASSERT_TRUE(RunRoundZero());
  link_->Close(absl::Seconds(5), [] {});
  EXPECT_TRUE(RunUntil([this] { return !Job()->nodes.at(Incarnation(1)).connected; }));
}

TEST_P(RendezvousLinkContract, SaysNothingAfterItHasClosed) {
  ASSERT_TRUE(RunRoundZero());
  link_->Close(absl::Seconds(5), [this] { heard_.closed = true; });
  ASSERT_TRUE(RunUntil([this] { return heard_.closed; }));
  const size_t before = heard_.count();
  server_->HostLeaving({.ends_job = true, .reason = "test"}, "node1");
  RunReady();
  EXPECT_EQ(heard_.count(), before);
}

TEST_P(RendezvousLinkContract, ClosesWithoutHavingBeenOpened) {
  link_->Close(absl::Seconds(5), [this] { heard_.closed = true; });
  EXPECT_FALSE(heard_.closed);
  EXPECT_TRUE(RunUntil([this] { return heard_.closed; }));
}

TEST_P(RendezvousLinkContract, MayBeDestroyedWhileItIsUp) {
  ASSERT_TRUE(RunRoundZero());
  link_.reset();
  EXPECT_TRUE(RunUntil([this] { return !Job()->nodes.at(Incarnation(1)).connected; }));
}

TEST_P(RendezvousLinkContract, MayOutliveTheServer) {
  ASSERT_TRUE(RunRoundZero());
  server_.reset();
  link_->SendReport(JoiningReport(2));
  link_->SendStoreRequest({.request_id = 1, .round = Round(0), .operation = StoreGet{"k"}});
  ASSERT_TRUE(RunUntil([this] { return !heard_.replies.empty(); }));
  EXPECT_EQ(heard_.replies[0].status.code(), absl::StatusCode::kUnavailable);
}

std::string NameOf(const ::testing::TestParamInfo<Kind>& info) {
  constexpr const char* kNames[] = {"Local", "GrpcWithTls", "GrpcWithoutTls"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Links, RendezvousLinkContract,
                         ::testing::Values(Kind::kLocal, Kind::kGrpcWithTls, Kind::kGrpcWithoutTls),
                         NameOf);

}  // namespace
}  // namespace muster::rendezvous

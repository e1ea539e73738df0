// A server whose state is durable, on an event loop: what leaves it, and when.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/server/record_wire.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Keeps nothing until the test says so.
class SlowKeeper final : public RecordKeeper {
 public:
  struct Kept {
    std::vector<KeptChange> changes;
    uint64_t newest = 0;
    RecordKeeper::Listener listener;
  };
  explicit SlowKeeper(Kept& kept) : kept_(kept) {}
  void Open(Listener listener) override { kept_.listener = std::move(listener); }
  void Keep(std::vector<KeptChange> changes, uint64_t ticket) override {
    for (KeptChange& change : changes) kept_.changes.push_back(std::move(change));
    kept_.newest = ticket;
  }

 private:
  Kept& kept_;
};

class DurableServerTest : public ::testing::Test, public LoopWorld {
 protected:
  std::unique_ptr<RendezvousServer> Serve(std::vector<KeptJob> jobs = {}) {
    kept_ = {};
    ++term_;
    auto server = RendezvousServer::Create(loop(),
                                           {.term = ServerTerm(term_),
                                            .first_term = ServerTerm(1),
                                            .owners = {{"", kSecret}},
                                            .host_name = "server1",
                                            .announce = [](const JobKey&, const Announce&) {}},
                                           std::make_unique<SlowKeeper>(kept_), std::move(jobs));
    kept_.listener.on_durable(kept_.newest);  // its term
    return server;
  }
  KeptJob KeptNow() const {
    const KeptChange& change = kept_.changes.back();
    auto record = DecodeRecord(change.round.value_or(""), change.progress, MonoNow());
    EXPECT_TRUE(record.ok()) << record.status();
    return {change.key, change.instance, *record};
  }

  SlowKeeper::Kept kept_;
  int64_t term_ = 0;
};

TEST_F(DurableServerTest, TellsNobodyOfARoundBeforeItIsKept) {
  const auto server = Serve();
  Heard heard;
  const auto link = server->MakeLocalLink("j7", Incarnation(1));
  link->Open(heard.Listener());
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return !kept_.changes.empty(); }));
  RunReady();
  EXPECT_THAT(heard.directives, IsEmpty());
  kept_.listener.on_durable(kept_.newest);
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
}

// A disk that is full: what was decided has not left, and both who wait are told.
TEST_F(DurableServerTest, SaysWhatItsDecisionsWaitFor) {
  const auto server = Serve();
  Heard heard;
  const auto link = server->MakeLocalLink("j7", Incarnation(1));
  link->Open(heard.Listener());
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return !kept_.changes.empty(); }));
  kept_.listener.on_trouble("database or disk is full");
  link->SendReport(JoiningReport(2));
  ASSERT_TRUE(RunUntil([&] { return !heard.directives.empty(); }));
  const Directive told = heard.directives.back();
  ASSERT_TRUE(std::holds_alternative<Refuse>(told.body));
  EXPECT_EQ(std::get<Refuse>(told.body).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::get<Refuse>(told.body).status.message(),
              HasSubstr("cannot write its state: database or disk is full"));
  status::StatusPage page = server->PagesOf("").front();
  EXPECT_EQ(page.health.state, status::kWaiting);
  EXPECT_THAT(page.health.text, HasSubstr("database or disk is full"));
  kept_.listener.on_trouble("");
  kept_.listener.on_durable(kept_.newest);
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  EXPECT_GT(heard.directives.back().revision, told.revision) << "so that the agent takes it";
  page = server->PagesOf("").front();
  EXPECT_EQ(page.health.state, status::kHealthy);
}

TEST_F(DurableServerTest, GoesOnWithWhatItsEarlierLifeKept) {
  auto server = Serve();
  Heard heard;
  auto link = server->MakeLocalLink("j7", Incarnation(1));
  link->Open(heard.Listener());
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return !kept_.changes.empty(); }));
  kept_.listener.on_durable(kept_.newest);
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  const Assignment before = *heard.assignment();
  const KeptJob kept = KeptNow();
  link.reset();
  server.reset();

  server = Serve({kept});
  Heard again;
  link = server->MakeLocalLink("j7", Incarnation(1));
  link->Open(again.Listener());
  AgentReport report = JoiningReport(2);
  report.phase = AgentPhase::kRunning;
  report.round = before.round;
  report.instance = before.instance;
  link->SendReport(report);
  ASSERT_TRUE(RunUntil([&] { return again.assignment() != nullptr; }));
  EXPECT_EQ(again.assignment()->round, before.round);
  EXPECT_EQ(again.assignment()->instance, before.instance);
  EXPECT_EQ(again.directives.back().term, ServerTerm(2));
  EXPECT_THAT(kept_.changes, SizeIs(0)) << "nothing has changed";
}

}  // namespace
}  // namespace muster::rendezvous

// What AgentCore does while ranks are asked what they called last.
#include <csignal>

#include "agent/core/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/agent_core_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Seconds(1);

class AgentCoreAborts : public AgentCoreTest {
 protected:
  void Ask(bool asks_workers, bool awaits_judge, int64_t round = 0) {
    Do(LastCallsChanged{Round(round),
                        {.asks_workers = asks_workers,
                         .awaits_judge = awaits_judge,
                         .within = asks_workers || awaits_judge ? kLimit : absl::ZeroDuration()}});
  }
  void Stop() {
    Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "n2 failed"});
  }
};

TEST_F(AgentCoreAborts, AreReportedOnceItIsKnownWhatAllCalled) {
  Run();
  Ask(true, true);
  Exit(1, 0, SIGABRT);
  EXPECT_THAT(effects_, IsEmpty());
  EXPECT_EQ(core_.phase(), NodePhase::kRunning);
  Ask(false, true);
  EXPECT_THAT(effects_, IsEmpty());
  Ask(false, false);
  EXPECT_EQ(core_.phase(), NodePhase::kStopping);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
  EXPECT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentCoreAborts, AreReportedInTimeWhateverBecomesOfTheInquiry) {
  Run();
  Ask(true, true);
  Exit(1, 0, SIGABRT);
  EXPECT_EQ(core_.NextDeadline(), now_ + kLimit);
  Do(Tick{}, kLimit);
  ASSERT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_EQ(LastReport().failures[0].age, kLimit);
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
}

TEST_F(AgentCoreAborts, AreTakenInWithWhatIsKnownAlsoWhereThatComesLate) {
  Run();
  Ask(false, true);
  Exit(1, 0, SIGABRT);
  hangs::LastCallsState state;
  state.said.aborted = {1};
  const auto call = [](int64_t bytes, std::vector<int> ranks) {
    hangs::Call same{.label = "world", .operation = {}, .ranks = std::move(ranks), .age = {}};
    same.operation.bytes = bytes;
    return same;
  };
  state.said.differences = {call(4096, {0, 1, 2}), call(8192, {3})};
  Do(LastCallsChanged{Round(0), state}, 2 * kLimit);
  ASSERT_THAT(LastReport().failures, SizeIs(1));
  EXPECT_THAT(LastReport().failures[0].ended_by, HasSubstr("rank 3 called"));
}

TEST_F(AgentCoreAborts, HaveTheWorkersAskedBeforeTheyAreSignalled) {
  Run();
  Ask(true, false);
  Stop();
  EXPECT_EQ(core_.phase(), NodePhase::kStopping);
  EXPECT_THAT(All<SendReport>(), SizeIs(1)) << "the server hears of the stop at once";
  EXPECT_THAT(All<PrepareSignal>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Ask(false, false);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGTERM);
}

TEST_F(AgentCoreAborts, DoNotProlongTheGrace) {
  Run();
  Ask(true, false);
  Stop();
  Do(Tick{}, kLimit);
  EXPECT_THAT(All<SignalWorkers>(), SizeIs(1));
  Do(Tick{}, kGrace - kLimit);
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentCoreAborts, DoNotKeepWorkersAliveThatSomebodyEndsInHaste) {
  Run();
  Ask(true, false);
  Do(SignalReceived{SIGINT});
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Do(SignalReceived{SIGINT});
  ASSERT_THAT(All<SignalWorkers>(), SizeIs(1));
  EXPECT_EQ(All<SignalWorkers>()[0].signal, SIGKILL);
}

TEST_F(AgentCoreAborts, DoNotKeepBackWorkersThatEndWell) {
  Run();
  Ask(true, true);
  SucceedEverywhere();
  EXPECT_EQ(core_.phase(), NodePhase::kWaiting);
}

TEST_F(AgentCoreAborts, OfAnotherRoundKeepNothingBack) {
  Run();
  Ask(true, true, 4);
  Exit(1, 0, SIGABRT);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed);
}

TEST_F(AgentCoreAborts, AreNotedForTheRecordWhereTheyAreTheWorkersOwn) {
  Run();
  WorkerExited event{.round = Round(0),
                     .local_rank = LocalRank(1),
                     .failure = WorkerFailure{.local_rank = LocalRank(1), .signal = SIGABRT},
                     .is_its_own = true};
  Ask(false, true);
  Do(event);
  EXPECT_THAT(All<NoteFailure>(), IsEmpty());
  Ask(false, false);
  EXPECT_THAT(All<NoteFailure>(), SizeIs(1));
  Exit(0, 0, SIGTERM);
  EXPECT_THAT(All<NoteFailure>(), IsEmpty());
}

// A worker that awaits the next round ends, and its failure is still kept when that round comes.
TEST_F(AgentCoreAborts, OfARoundThatIsOverAreHeardOfBeforeTheNext) {
  Run();
  for (const int rank : {0, 1}) {
    Do(WorkerSpawned{Round(0), LocalRank(rank), 700 + rank});
    Do(WorkerPromised{.round = Round(0), .local_rank = LocalRank(rank), .survives = true});
  }
  Stop();
  for (const int rank : {0, 1}) {
    Do(WorkerPromised{
        .round = Round(0), .local_rank = LocalRank(rank), .survives = true, .awaits_round = true});
  }
  Do(DescendantsGone{});
  Do(PortsReserved{.store_port = 1, .worker_ports = {2, 3}});
  ASSERT_EQ(core_.phase(), NodePhase::kJoining);
  Ask(false, true);
  Exit(1, 0, SIGABRT);
  Direct(RunRound{Place(1)});
  ASSERT_THAT(All<StartWorkers>(), SizeIs(1));
  EXPECT_THAT(All<StartWorkers>()[0].kept, ::testing::ElementsAre(LocalRank(0)));
  Ask(true, false, 0);
  Exit(0, 3, 0, 1);
  EXPECT_EQ(LastReport().phase, AgentPhase::kFailed) << "the new round is another";
}

}  // namespace
}  // namespace muster::agent

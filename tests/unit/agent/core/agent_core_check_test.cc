// The node's own check (--node_check): when it runs, and what a node does that fails it.
#include <csignal>

#include "agent/core/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/agent/core/agent_core_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kBadGpu[] = "the node check doctor exited with code 1: GPU 3 is gone";

AgentCoreOptions WithCheck(AgentCoreOptions options) {
  options.checks_node = true;
  return options;
}

class AgentCheckTest : public AgentCoreTest {
 protected:
  AgentCheckTest() { core_ = AgentCore(WithCheck(Options())); }

  void Begin() {
    Do(LinkChanged{.up = true, .detail = "connected"});
    Do(Started{});
  }
  void Pass() { Do(CheckEnded{}); }
  void Fail(const std::string& why = kBadGpu) { Do(CheckEnded{.failure = why}); }
  void GetPorts() { Do(PortsReserved{.store_port = 1, .worker_ports = {2, 3}}); }
  void RunRounds(int64_t round) {
    GetPorts();
    Direct(RunRound{Place(round)});
  }
  // A worker of this node has failed, and the rendezvous restarts the job.
  void FailAWorkerAndRestart() {
    Exit(0, 7);
    Exit(1, 0, SIGTERM);
    Do(DescendantsGone{});
    Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  }
};

TEST_F(AgentCheckTest, ChecksTheNodeBeforeItAsksForAPlace) {
  Begin();
  EXPECT_THAT(All<RunCheck>(), SizeIs(1));
  EXPECT_THAT(All<ReservePorts>(), IsEmpty());
  ASSERT_TRUE(LastReport().check.has_value());
  EXPECT_EQ(LastReport().check->failure, "");
  Pass();
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  GetPorts();
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_FALSE(LastReport().check.has_value());
}

TEST_F(AgentCheckTest, ReportsWhileTheCheckRunsSoThatItsLeaseHolds) {
  Begin();
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(core_.NextDeadline(), now_ + absl::Seconds(2));
    Do(Tick{}, absl::Seconds(2));
    ASSERT_TRUE(LastReport().check.has_value());
  }
}

TEST_F(AgentCheckTest, HasNoPlaceWhileItsCheckRunsOrHasFailed) {
  Begin();
  EXPECT_THAT(Direct(RunRound{Place(0)}), IsEmpty());
  Fail();
  EXPECT_THAT(Direct(RunRound{Place(0)}), IsEmpty());
  EXPECT_EQ(core_.phase(), NodePhase::kChecking);
}

TEST_F(AgentCheckTest, SaysWhyItFailedAndStays) {
  Begin();
  Fail();
  ASSERT_TRUE(LastReport().check.has_value());
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_EQ(LastReport().check->failure, kBadGpu);
  ASSERT_THAT(All<Announce>(), SizeIs(1));
  EXPECT_THAT(All<Announce>()[0].text, HasSubstr("GPU 3 is gone; it is checked again in 10s"));
  EXPECT_THAT(All<Finish>(), IsEmpty());
}

TEST_F(AgentCheckTest, ChecksAgainAfterPausesThatGrowAndSaysTheSameFailureOnce) {
  Begin();
  Fail();
  for (const absl::Duration pause : {absl::Seconds(10), absl::Seconds(20), absl::Seconds(40)}) {
    const MonoTime failed_at = now_;
    while (All<RunCheck>().empty()) {
      ASSERT_LT(core_.NextDeadline(), failed_at + pause + absl::Seconds(1));
      now_ = core_.NextDeadline();
      Do(Tick{});
    }
    EXPECT_EQ(now_, failed_at + pause);
    EXPECT_EQ(LastReport().check ? LastReport().check->failure : kBadGpu, kBadGpu)
        << "it is as unfit while it is checked again";
    Fail();
    EXPECT_THAT(All<Announce>(), IsEmpty());
  }
}

TEST_F(AgentCheckTest, JoinsOnceItPasses) {
  Begin();
  Fail();
  Do(Tick{}, absl::Seconds(10));
  Pass();
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
  EXPECT_THAT(All<Announce>(), SizeIs(1));
  GetPorts();
  EXPECT_FALSE(LastReport().check.has_value());
}

TEST_F(AgentCheckTest, ChecksAfterAFailureOfItsOwnWorkers) {
  Begin();
  Pass();
  RunRounds(0);
  FailAWorkerAndRestart();
  EXPECT_THAT(All<RunCheck>(), SizeIs(1));
  EXPECT_THAT(All<ReservePorts>(), IsEmpty());
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining);
  EXPECT_EQ(LastReport().round, Round(0));
  EXPECT_TRUE(LastReport().check.has_value());
}

TEST_F(AgentCheckTest, DoesNotCheckForTheFailuresOfOthers) {
  Begin();
  Pass();
  RunRounds(0);
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "rank 3 failed"});
  Exit(0, 0, SIGTERM);
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  EXPECT_THAT(All<RunCheck>(), IsEmpty());
  EXPECT_THAT(All<ReservePorts>(), SizeIs(1));
}

TEST_F(AgentCheckTest, EndsWithTheJobAndEndsTheCheckThatRuns) {
  Begin();
  Direct(EndJob{{.exit_code = 0, .reason = "every worker ended with 0"}});
  EXPECT_THAT(All<EndCheck>(), SizeIs(1));
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 0);
}

TEST_F(AgentCheckTest, EndsAtASignalWithoutWaitingForTheCheck) {
  Begin();
  Do(SignalReceived{SIGINT});
  EXPECT_THAT(All<EndCheck>(), SizeIs(1));
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, 130);
}

TEST_F(AgentCheckTest, EndsParkedWorkersOnlyWhenItFails) {
  Begin();
  Pass();
  RunRounds(0);
  const auto say = [&](bool awaits) {
    Do(WorkerPromised{
        .round = Round(0), .local_rank = LocalRank(1), .survives = true, .awaits_round = awaits});
  };
  say(false);
  Exit(0, 7);
  say(true);
  Do(DescendantsGone{});
  Direct(StopRound{.round = Round(0), .cause = StopCause::kRestart, .reason = "restart 1 of 3"});
  EXPECT_THAT(All<RunCheck>(), SizeIs(1));
  EXPECT_THAT(All<SignalWorkers>(), IsEmpty());
  Fail();
  ASSERT_THAT(All<TellRoundOver>(), SizeIs(1));
  EXPECT_FALSE(All<TellRoundOver>()[0].is_followed);
  EXPECT_EQ(All<TellRoundOver>()[0].reason, kBadGpu);
  Do(Tick{}, absl::Seconds(2));
  EXPECT_EQ(LastReport().phase, AgentPhase::kJoining) << "nobody waits for this node";
  EXPECT_TRUE(LastReport().check.has_value());
  Exit(1, 0, SIGTERM);
  Do(DescendantsGone{});
  EXPECT_EQ(core_.phase(), NodePhase::kChecking);
  EXPECT_EQ(LastReport().check->failure, kBadGpu);
}

TEST_F(AgentCheckTest, GoesOnWithTheCheckWhenTheServerHasLostItsState) {
  Begin();
  Direct(Refuse{absl::AbortedError("the job is not known here any more")});
  EXPECT_THAT(All<RunCheck>(), IsEmpty());
  EXPECT_EQ(core_.phase(), NodePhase::kChecking);
  Pass();
  EXPECT_EQ(core_.phase(), NodePhase::kReserving);
}

TEST_F(AgentCheckTest, GivesUpOnAServerThatIsNeverHeard) {
  Do(Started{});
  Do(Tick{}, absl::Seconds(601));
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, kExitNodesMissing);
  EXPECT_THAT(All<EndCheck>(), SizeIs(1));
}

TEST_F(AgentCheckTest, EndsAtOnceWhereNoOtherNodeCanTakeItsPlace) {
  AgentCoreOptions options = WithCheck(Options());
  options.settings.max_nodes = 1;
  options.hosts_server = true;
  core_ = AgentCore(options);
  Begin();
  Fail();
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, kExitNodeUnfit);
  EXPECT_THAT(All<Finish>()[0].outcome.reason,
              HasSubstr("node1 does not pass its check: the node check doctor"));
}

TEST_F(AgentCheckTest, EndsWithTwoWhenItsProgramHasNeverRunAndCannot) {
  Begin();
  Do(CheckEnded{.failure = "cannot start ./doctor", .cannot_start = true});
  ASSERT_THAT(All<Finish>(), SizeIs(1));
  EXPECT_EQ(All<Finish>()[0].outcome.exit_code, kExitUsage);
}

TEST_F(AgentCheckTest, StaysWhenAProgramThatHasRunCannotAnyMore) {
  Begin();
  Pass();
  RunRounds(0);
  FailAWorkerAndRestart();
  Do(CheckEnded{.failure = "cannot start ./doctor", .cannot_start = true});
  EXPECT_THAT(All<Finish>(), IsEmpty());
  EXPECT_EQ(core_.phase(), NodePhase::kChecking);
}

}  // namespace
}  // namespace muster::agent

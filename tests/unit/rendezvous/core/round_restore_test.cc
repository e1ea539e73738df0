// A server that goes on with the record of a job: what its agents find, and what is not lost.
#include "rendezvous/core/round_restore.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/job_table.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const JobKey kJob{"", "a"};

// A table that keeps records, and agents as reports that tests change and send.
class RestoreTest : public testing::Test {
 protected:
  RestoreTest() { StartServer({}); }
  void TearDown() override { EXPECT_EQ(table_->CheckInvariants(), ""); }

  void StartServer(std::vector<KeptJob> jobs, bool knows_all = true) {
    ++term_;
    for (KeptJob& job : jobs) {
      if (!knows_all) SkipLostRounds(job.record);
    }
    if (!knows_all) first_term_ = ServerTerm(term_);
    table_.emplace(JobTableOptions{
        .term = ServerTerm(term_), .keeps_records = true, .first_term = first_term_});
    table_->Restore(std::move(jobs), now_);
  }
  // The server dies `seconds` before it is there again, with what it has kept.
  void Restart(double seconds = 5) {
    now_ = now_ + absl::Seconds(seconds);
    StartServer(Kept());
  }
  std::vector<KeptJob> Kept() const {
    std::vector<KeptJob> jobs;
    for (const auto& [unused, job] : kept_) jobs.push_back(job);
    return jobs;
  }

  AgentReport& Agent(int n) {
    AgentReport& report = agents_[n];
    report.node = Describe("node" + std::to_string(n));
    report.settings = settings_;
    if (settings_.is_static) report.node.node_rank = n - 1;
    return report;
  }
  // The answer to agent n, who does as it is told.
  Directive Say(int n, AgentPhase phase) {
    Agent(n).phase = phase;
    ++Agent(n).sequence;
    return Take(n, table_->OnReport(kJob, Incarnation(n), Agent(n), now_));
  }
  Directive Take(int n, const std::vector<JobTable::JobEffect>& effects) {
    Directive newest;
    for (const auto& effect : effects) {
      if (const auto* keep = std::get_if<KeepJob>(&effect.effect)) Keep(*keep);
      const auto* send = std::get_if<SendDirective>(&effect.effect);
      if (send == nullptr) continue;
      AgentReport& agent = Agent(static_cast<int>(send->to.value()));
      if (!std::holds_alternative<Refuse>(send->directive.body)) {
        agent.instance = send->directive.instance;
      }
      if (const auto* run = std::get_if<RunRound>(&send->directive.body)) {
        agent.round = run->assignment.round;
      }
      if (send->to == Incarnation(n)) newest = send->directive;
    }
    return newest;
  }
  void Keep(const KeepJob& keep) {
    if (keep.is_dropped) {
      kept_.erase(keep.instance);
      return;
    }
    KeptJob& job = kept_[keep.instance];
    job.key = kJob;
    job.instance = keep.instance;
    if (keep.round) static_cast<RoundRecord&>(job.record) = *keep.round;
    static_cast<ProgressRecord&>(job.record) = keep.progress;
  }
  void RunWith(int nodes) {
    for (int n = 1; n <= nodes; ++n) Say(n, AgentPhase::kJoining);
    for (int n = 1; n <= nodes; ++n) Say(n, AgentPhase::kRunning);
  }
  Directive Fail(int n) {
    const Assignment& place = State().assignments.at(Incarnation(n));
    Agent(n).failures = {{.rank = place.first_rank, .node_rank = place.node_rank, .exit_code = 7}};
    return Say(n, AgentPhase::kFailed);
  }
  const JobState& State() const { return *table_->FindState(kJob); }

  RendezvousSettings settings_ = Settings(2, 2, 1);
  std::optional<JobTable> table_;
  MonoTime now_ = At(1000);
  int64_t term_ = 0;
  ServerTerm first_term_{1};
  absl::btree_map<int, AgentReport> agents_;
  absl::btree_map<Instance, KeptJob> kept_;
};

TEST_F(RestoreTest, AgentsOfARunningRoundFindThemselvesKnown) {
  RunWith(2);
  const Instance instance = Agent(1).instance;
  Restart();
  for (const int n : {1, 2}) {
    const Directive directive = Say(n, AgentPhase::kRunning);
    EXPECT_EQ(directive.instance, instance);
    EXPECT_EQ(directive.term, ServerTerm(2));
    ASSERT_TRUE(std::holds_alternative<RunRound>(directive.body));
    EXPECT_EQ(std::get<RunRound>(directive.body).assignment.round, Round(0));
  }
  EXPECT_EQ(State().phase, JobPhase::kRunning);
}

TEST_F(RestoreTest, WaitsLongerThanALeaseForAgentsToComeBack) {
  RunWith(2);
  Restart();
  for (int i = 0; i < 7; ++i) {
    now_ = now_ + absl::Seconds(2);
    Say(1, AgentPhase::kRunning);
  }
  EXPECT_EQ(State().phase, JobPhase::kRunning) << "14 s";
  Say(2, AgentPhase::kRunning);
  EXPECT_EQ(State().lost.size(), 0u);
}

TEST_F(RestoreTest, LosesAMemberThatDoesNotComeBack) {
  RunWith(2);
  Restart();
  for (int i = 0; i < 8; ++i) {
    now_ = now_ + absl::Seconds(2);
    Say(1, AgentPhase::kRunning);
  }
  EXPECT_EQ(State().phase, JobPhase::kForming);
  EXPECT_EQ(State().lost.size(), 1u);
}

TEST_F(RestoreTest, AMemberThatHadNotHeardOfItsRoundIsToldWithItsPeers) {
  Say(1, AgentPhase::kJoining);
  AgentReport unheard = Agent(2);
  ++unheard.sequence;
  Take(1, table_->OnReport(kJob, Incarnation(2), unheard, now_));
  Agent(2) = unheard;
  Agent(2).instance = Instance();
  Agent(2).round = kNoRound;
  Restart();
  const Directive directive = Say(2, AgentPhase::kJoining);
  ASSERT_TRUE(std::holds_alternative<RunRound>(directive.body));
  EXPECT_EQ(std::get<RunRound>(directive.body).assignment.peers.size(), 2u);
}

class LackingRestoreTest : public RestoreTest {
 protected:
  // Round 1 of nodes 1 and 2 runs, and the server that comes next knows of round 0 alone, as where
  // the newest transaction was not whole (server/state_file.h).
  void ForgetRoundOne() {
    settings_ = Settings(1, 2, 1);
    RunWith(2);
    const absl::btree_map<Instance, KeptJob> before = kept_;
    Fail(1);
    Agent(1).failures.clear();
    RunWith(2);
    ASSERT_EQ(State().round, Round(1));
    now_ = now_ + absl::Seconds(5);
    kept_ = before;
    StartServer(Kept(), /*knows_all=*/false);
    for (auto& [unused, job] : kept_) SkipLostRounds(job.record);
  }
};

TEST_F(LackingRestoreTest, ARoundThatTheRecordLacksRunsOn) {
  ForgetRoundOne();
  for (const int n : {1, 2}) {
    Agent(n).num_nodes = 2;
    const Directive directive = Say(n, AgentPhase::kRunning);
    ASSERT_TRUE(std::holds_alternative<Refuse>(directive.body)) << ToString(directive.body);
    EXPECT_TRUE(absl::IsUnavailable(std::get<Refuse>(directive.body).status));
  }
  Say(1, AgentPhase::kSucceeded);
  const Directive end = Say(2, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_EQ(std::get<EndJob>(end.body).outcome.exit_code, 0);
}

TEST_F(LackingRestoreTest, ItsNumberIsNotUsedAgain) {
  ForgetRoundOne();
  for (int i = 0; i < 60; ++i) {
    now_ = now_ + absl::Seconds(2);
    Say(3, AgentPhase::kJoining);
  }
  EXPECT_EQ(State().members, std::vector<Incarnation>{Incarnation(3)});
  EXPECT_GT(State().round, Round(1));
}

// The next life of the server forms a round, and its record is lost, too.
TEST_F(LackingRestoreTest, NorIsThatOfARoundThatTheNextLifeLacks) {
  ForgetRoundOne();
  std::vector<Round> rounds;
  for (int life = 0; life < 3; ++life) {
    const absl::btree_map<Instance, KeptJob> before = kept_;
    while (State().members != std::vector<Incarnation>{Incarnation(3 + life)}) {
      now_ = now_ + absl::Seconds(2);
      Say(3 + life, AgentPhase::kJoining);
    }
    rounds.push_back(State().round);
    kept_ = before;
    StartServer(Kept(), /*knows_all=*/false);
    for (auto& [unused, job] : kept_) SkipLostRounds(job.record);
  }
  EXPECT_LT(rounds[0], rounds[1]);
  EXPECT_LT(rounds[1], rounds[2]);
  EXPECT_LT(rounds[2], Round(400)) << "people read them";
}

// The next life would begin the old round once more, for members that join.
TEST_F(LackingRestoreTest, TheRecordOfItsJobIsDroppedForTheNextLifeToo) {
  ForgetRoundOne();
  const Directive directive = Say(1, AgentPhase::kFailed);
  ASSERT_TRUE(std::holds_alternative<Refuse>(directive.body)) << ToString(directive.body);
  ASSERT_TRUE(absl::IsAborted(std::get<Refuse>(directive.body).status));
  EXPECT_THAT(Kept(), IsEmpty());
  Restart();
  Agent(1).instance = Instance();
  Agent(1).round = kNoRound;
  EXPECT_TRUE(std::holds_alternative<Wait>(Say(1, AgentPhase::kJoining).body));
}

TEST_F(LackingRestoreTest, AnAgentThatSpeaksOfANumberThatNoneHadIsNotBelieved) {
  ForgetRoundOne();
  Agent(1).round = State().first_unused;
  Say(1, AgentPhase::kRunning);
  ASSERT_NE(table_->FindState(kJob), nullptr);
  EXPECT_EQ(State().round, Round(0));
}

TEST_F(LackingRestoreTest, LaterRoundsFollowOneByOne) {
  ForgetRoundOne();
  while (State().members != std::vector<Incarnation>{Incarnation(3)}) {
    now_ = now_ + absl::Seconds(2);
    Say(3, AgentPhase::kJoining);
  }
  const Round first = State().round;
  Say(3, AgentPhase::kRunning);
  Restart();
  Fail(3);
  Agent(3).failures.clear();
  now_ = now_ + absl::Seconds(5);
  Say(3, AgentPhase::kJoining);
  EXPECT_EQ(State().round, first.Next());
}

TEST_F(RestoreTest, AFailureIsChargedOnce) {
  RunWith(2);
  Fail(1);
  ASSERT_EQ(State().restarts_used, 1);
  Restart();
  const Directive directive = Fail(1);
  ASSERT_TRUE(std::holds_alternative<StopRound>(directive.body));
  EXPECT_EQ(std::get<StopRound>(directive.body).cause, StopCause::kRestart);
  EXPECT_EQ(State().restarts_used, 1);
}

TEST_F(RestoreTest, TheNextRoundIsFormedOnceBothHaveStopped) {
  RunWith(2);
  Fail(1);
  Say(1, AgentPhase::kJoining);
  Restart();
  Agent(1).failures.clear();
  Say(1, AgentPhase::kJoining);
  EXPECT_EQ(State().phase, JobPhase::kForming) << "node2 may run still";
  Say(2, AgentPhase::kJoining);
  EXPECT_EQ(State().phase, JobPhase::kRunning);
  EXPECT_EQ(State().round, Round(1));
  EXPECT_EQ(State().assignments.at(Incarnation(1)).restart_count, 1);
}

TEST_F(RestoreTest, AJobThatWasEndingEndsAsItWouldHave) {
  settings_ = Settings(2, 2, 0);
  RunWith(2);
  Fail(1);
  ASSERT_EQ(State().phase, JobPhase::kEnding);
  Restart();
  Say(1, AgentPhase::kStopped);
  const Directive directive = Say(2, AgentPhase::kStopped);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  const JobOutcome& outcome = std::get<EndJob>(directive.body).outcome;
  EXPECT_EQ(outcome.exit_code, 7);
  ASSERT_TRUE(outcome.root_cause.has_value());
  EXPECT_EQ(outcome.root_cause->rank, Rank(0));
}

TEST_F(RestoreTest, AMemberThatWasAwayAtTheEndIsToldIt) {
  RunWith(2);
  Say(1, AgentPhase::kSucceeded);
  Take(1, table_->OnReport(
              kJob, Incarnation(2),
              [&] {
                AgentReport report = Agent(2);
                report.phase = AgentPhase::kSucceeded;
                ++report.sequence;
                return report;
              }(),
              now_));
  ASSERT_EQ(State().phase, JobPhase::kEnded);
  Restart();
  EXPECT_EQ(table_->size(), 0u);
  const Directive directive = Say(2, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, 0);
}

TEST_F(RestoreTest, OneThatSucceededAndWentIsNotWaitedFor) {
  RunWith(2);
  Say(2, AgentPhase::kSucceeded);
  Agent(2).departure = Departure{.signal = 15, .reason = "node2 left"};
  Say(2, AgentPhase::kLeaving);
  Restart();
  const Directive directive = Say(1, AgentPhase::kSucceeded);
  EXPECT_TRUE(std::holds_alternative<EndJob>(directive.body));
}

TEST_F(RestoreTest, AJobWithoutARoundIsFormedAnew) {
  Say(1, AgentPhase::kJoining);
  EXPECT_THAT(Kept(), IsEmpty());
  Restart();
  const Directive directive = Say(1, AgentPhase::kJoining);
  ASSERT_TRUE(std::holds_alternative<Refuse>(directive.body));
  EXPECT_EQ(std::get<Refuse>(directive.body).status.code(), absl::StatusCode::kAborted);
}

TEST_F(RestoreTest, AStaticJobKnowsWhoHoldsWhichRank) {
  settings_ = StaticSettings(2, 1);
  RunWith(2);
  Restart();
  Say(1, AgentPhase::kRunning);
  Say(2, AgentPhase::kRunning);
  Fail(1);
  Agent(1).failures.clear();
  Say(1, AgentPhase::kJoining);
  Say(2, AgentPhase::kJoining);
  EXPECT_EQ(State().round, Round(1));
  EXPECT_EQ(State().assignments.at(Incarnation(2)).node_rank, NodeRank(1));
}

TEST_F(RestoreTest, TheStoreOfTheRoundIsLostAndSaysSo) {
  RunWith(2);
  Restart();
  Say(1, AgentPhase::kRunning);
  const auto ask = [&](StoreOperation operation) {
    const auto effects = table_->OnStoreRequest(
        kJob, Incarnation(1), {1, Round(0), std::move(operation), Agent(1).instance}, now_);
    for (const auto& effect : effects) {
      const auto* reply = std::get_if<SendStoreReply>(&effect.effect);
      if (reply != nullptr) return reply->reply.status;
    }
    return absl::InternalError("no answer");
  };
  const absl::Status refused = ask(StoreGet{"k"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lost the store of this round"));
  EXPECT_EQ(ask(CommitCheckpoint{.step = 5}), absl::OkStatus());
}

TEST_F(RestoreTest, WhatIsNotKnownOfThisStateHasEnded) {
  Agent(1).instance = FirstInstanceOf(ServerTerm(1));
  Agent(1).round = Round(3);
  Restart();
  const Directive directive = Say(1, AgentPhase::kRunning);
  ASSERT_TRUE(std::holds_alternative<Refuse>(directive.body));
  EXPECT_EQ(std::get<Refuse>(directive.body).status.code(), absl::StatusCode::kFailedPrecondition);
}

// --- A stop that is not done

TEST_F(RestoreTest, AStopThatWasAskedForIsNotForgotten) {
  RunWith(2);
  Take(0, table_->OnStopRequest(kJob, Incarnation(99), {.reason = "maintenance"}, now_));
  Agent(1).stop_floor = 4;
  Say(1, AgentPhase::kRunning);
  Restart();
  EXPECT_EQ(std::get<StopAt>(Say(1, AgentPhase::kRunning).body).step, kStopStepOpen);
  Agent(2).stop_floor = 6;
  EXPECT_EQ(std::get<StopAt>(Say(2, AgentPhase::kRunning).body).step, 6);
}

TEST_F(RestoreTest, AStepThatWasNamedIsNamedAgain) {
  RunWith(2);
  Take(0, table_->OnStopRequest(kJob, Incarnation(99), {}, now_));
  for (const int n : {1, 2}) {
    Agent(n).stop_floor = 3 + n;
    Say(n, AgentPhase::kRunning);
  }
  Restart();
  Agent(1).stop_floor.reset();
  EXPECT_EQ(std::get<StopAt>(Say(1, AgentPhase::kRunning).body).step, 5);
  Say(1, AgentPhase::kSucceeded);
  const Directive end = Say(2, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body));
  EXPECT_THAT(std::get<EndJob>(end.body).outcome.reason, HasSubstr("after step 5"));
}

TEST_F(RestoreTest, ADrainedNodeStaysDrained) {
  settings_ = Settings(1, 2);
  RunWith(2);
  Take(0, table_->OnStopRequest(kJob, Incarnation(99), {.node = "node2"}, now_));
  for (const int n : {1, 2}) {
    Agent(n).stop_floor = 5;
    Say(n, AgentPhase::kRunning);
  }
  Say(1, AgentPhase::kSucceeded);
  Restart();
  Say(1, AgentPhase::kSucceeded);
  const Directive end = Say(2, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body));
  EXPECT_THAT(std::get<EndJob>(end.body).outcome.reason, HasSubstr("node2 was drained"));
}

}  // namespace
}  // namespace muster::rendezvous

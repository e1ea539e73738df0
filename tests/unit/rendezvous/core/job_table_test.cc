#include "rendezvous/core/job_table.h"

#include <algorithm>
#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

class JobTableTest : public testing::Test {
 protected:
  explicit JobTableTest(JobTableOptions options = {.term = ServerTerm(1)}) : table_(options) {}
  void TearDown() override { EXPECT_EQ(table_.CheckInvariants(), ""); }

  // The directive to the agent that reports.
  Directive Report(const JobKey& job, uint64_t from, AgentPhase phase, Round round = kNoRound,
                   Instance instance = Instance(), int nodes = 1) {
    AgentReport report{.sequence = ++sequence_,
                       .phase = phase,
                       .round = round,
                       .instance = instance,
                       .node = Describe("node" + std::to_string(from)),
                       .settings = Settings(nodes, nodes)};
    Directive newest;
    for (const auto& effect : table_.OnReport(job, Incarnation(from), report, now_)) {
      const auto* send = std::get_if<SendDirective>(&effect.effect);
      if (send == nullptr || send->to != Incarnation(from)) continue;
      EXPECT_EQ(effect.job, job);
      EXPECT_GT(send->directive.revision, newest.revision);
      newest = send->directive;
    }
    return newest;
  }
  static absl::Status Refusal(const Directive& directive) {
    const auto* refuse = std::get_if<Refuse>(&directive.body);
    return refuse == nullptr ? absl::OkStatus() : refuse->status;
  }
  // A one-node job that has succeeded, and whose agent has been told.
  Directive RunToTheEnd(const JobKey& job, uint64_t agent) {
    const Instance instance = Report(job, agent, AgentPhase::kJoining).instance;
    return Report(job, agent, AgentPhase::kSucceeded, Round(0), instance);
  }

  JobTable table_;
  MonoTime now_ = At(100);
  uint64_t sequence_ = 0;
};

class EmbeddedJobTableTest : public JobTableTest {
 protected:
  EmbeddedJobTableTest() : JobTableTest({.term = ServerTerm(1), .only_run_id = "a"}) {}
};

const JobKey kA{"", "a"};
const JobKey kB{"", "b"};

TEST_F(JobTableTest, KeepsJobsApart) {
  Report(kA, 1, AgentPhase::kJoining);
  Report(kB, 2, AgentPhase::kJoining);
  EXPECT_EQ(table_.size(), 2u);
  EXPECT_EQ(table_.FindState(kA)->nodes.size(), 1u);
}

TEST_F(JobTableTest, KeepsJobsOfTwoUsersApart) {
  Report({"alice", "x"}, 1, AgentPhase::kJoining);
  Report({"bob", "x"}, 2, AgentPhase::kJoining);
  EXPECT_EQ(table_.size(), 2u);
}

TEST_F(JobTableTest, GivesEachJobItsOwnInstance) {
  const Instance first = Report(kA, 1, AgentPhase::kJoining).instance;
  const Instance second = Report(kB, 2, AgentPhase::kJoining).instance;
  EXPECT_NE(first, second);
}

TEST_F(JobTableTest, RefusesTheDefaultRunId) {
  const absl::Status refusal = Refusal(Report({"", "none"}, 1, AgentPhase::kJoining));
  EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("--rdzv_id=NAME"));
}

TEST_F(EmbeddedJobTableTest, RefusesAnotherRunIdNamingBoth) {
  const absl::Status refusal = Refusal(Report(kB, 1, AgentPhase::kJoining));
  EXPECT_EQ(refusal, absl::InvalidArgumentError("this server serves job 'a', not 'b'; another job "
                                                "uses the same endpoint"));
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(JobTableTest, RefusesAnotherInstanceOnceTheCurrentOneHasHadARound) {
  Report(kA, 1, AgentPhase::kJoining);
  const absl::Status refusal = Refusal(Report(kA, 2, AgentPhase::kRunning, Round(0), Instance(77)));
  EXPECT_EQ(refusal.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("job 'a' has been formed again"));
}

TEST_F(JobTableTest, RefusesToBeginAJobByAnythingButAJoin) {
  EXPECT_EQ(Refusal(Report(kA, 1, AgentPhase::kRunning, Round(3))).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(JobTableTest, AUserWhoEndsManyJobsForgetsNoOutcomeOfAnother) {
  // An instance is over once each of its agents has been told the end, and another one joins.
  const auto end = [&](const JobKey& job, uint64_t agent) {
    RunToTheEnd(job, agent);
    Report(job, agent + 100000, AgentPhase::kJoining);
  };
  end({"bob", "x"}, 1);
  const size_t num_jobs = kMaxEndedJobs + 600;
  for (size_t i = 0; i < num_jobs; ++i) end({"alice", std::to_string(i)}, 2 + i);
  EXPECT_NE(table_.FindOutcome({"bob", "x"}), nullptr);
  EXPECT_EQ(table_.FindOutcome({"alice", "0"}), nullptr);
  EXPECT_NE(table_.FindOutcome({"alice", std::to_string(num_jobs - 1)}), nullptr);
}

// --- A server that comes back without its state

// What the agents of a round of three nodes say, which an earlier life of the server formed.
class ForgetfulServerTest : public JobTableTest {
 protected:
  ForgetfulServerTest() : JobTableTest({.term = ServerTerm(2)}) {}

  Directive Running(uint64_t from, AgentPhase phase = AgentPhase::kRunning,
                    std::vector<WorkerFailure> failures = {}, int restarts_used = 0) {
    AgentReport report{.sequence = ++sequence_,
                       .phase = phase,
                       .round = Round(4),
                       .instance = FirstInstanceOf(ServerTerm(1)),
                       .num_nodes = 3,
                       .past = {.attempts = 5, .restarts_used = restarts_used},
                       .node = Describe("node" + std::to_string(from)),
                       .settings = Settings(3, 3, 1),
                       .failures = std::move(failures)};
    if (phase == AgentPhase::kLeaving) report.departure = Departure{.signal = SIGTERM};
    return Answer(from, report);
  }
  Directive Joining(uint64_t from, JobPast past = {}, int nodes = 1) {
    AgentReport report{.sequence = ++sequence_,
                       .past = past,
                       .node = Describe("node" + std::to_string(from)),
                       .settings = Settings(nodes, nodes, 1)};
    return Answer(from, report);
  }
  // Whoever has been told to wait in an instance.
  Directive JoiningStill(uint64_t from, Instance instance) {
    return Answer(from, {.sequence = ++sequence_,
                         .instance = instance,
                         .node = Describe("node" + std::to_string(from)),
                         .settings = Settings(3, 3, 1)});
  }
  Directive Answer(uint64_t from, const AgentReport& report) {
    Directive newest;
    for (const auto& effect : table_.OnReport(kJob, Incarnation(from), report, now_)) {
      const auto* send = std::get_if<SendDirective>(&effect.effect);
      if (send != nullptr && send->to == Incarnation(from)) newest = send->directive;
      if (const auto* said = std::get_if<Announce>(&effect.effect)) announced_.push_back(*said);
    }
    return newest;
  }
  bool IsLeftAlone(uint64_t from) {
    return Refusal(Running(from)).code() == absl::StatusCode::kUnavailable;
  }
  static bool IsToldToJoinAnew(const Directive& directive) {
    return Refusal(directive).code() == absl::StatusCode::kAborted;
  }

  const JobKey kJob{"", "a"};
  std::vector<Announce> announced_;
};

TEST_F(ForgetfulServerTest, LeavesHealthyWorkersAloneUntilTheOrphanTimeOut) {
  for (int seconds = 0; seconds < 600; seconds += 2) {
    EXPECT_TRUE(IsLeftAlone(1)) << seconds;
    EXPECT_TRUE(IsLeftAlone(2)) << seconds;
    now_ = now_ + absl::Seconds(2);
  }
  EXPECT_TRUE(IsToldToJoinAnew(Running(1)));
  EXPECT_TRUE(IsToldToJoinAnew(Running(2)));
}

TEST_F(ForgetfulServerTest, ANewcomerIsNeverToldOfATimeThatHasPassed) {
  const MonoTime orphaned = now_;
  Running(1);
  now_ = orphaned + absl::Seconds(599);
  Running(1);
  now_ = orphaned + absl::Seconds(601);
  const Directive newcomer = Joining(9);
  ASSERT_TRUE(std::holds_alternative<Wait>(newcomer.body));
  EXPECT_THAT(std::get<Wait>(newcomer.body).text, testing::EndsWith(" or in 6.3s"));
}

TEST_F(ForgetfulServerTest, SaysOnceThatItHasNoRecordOfTheRound) {
  EXPECT_THAT(std::string(Refusal(Running(1)).message()),
              HasSubstr("no record of round 4 of job 'a'"));
  Running(2);
  Running(1);
  ASSERT_EQ(announced_.size(), 1u);
  EXPECT_EQ(announced_[0].event, "job_unrecorded");
}

TEST_F(ForgetfulServerTest, BeginsNoRoundBesideOneThatMayStillRun) {
  Running(1);
  const Directive newcomer = Joining(9);
  ASSERT_TRUE(std::holds_alternative<Wait>(newcomer.body));
  EXPECT_THAT(std::get<Wait>(newcomer.body).text, HasSubstr("still runs on node1"));
  now_ = now_ + absl::Seconds(7);  // node1 is silent, and nobody else is known
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(9).body));
}

// The lease of a member grows with the nodes of its round.
TEST_F(ForgetfulServerTest, WaitsForNoLongerThanTheLeaseOfSoManyNodesAsTheJobMayHave) {
  Answer(1, {.sequence = ++sequence_,
             .phase = AgentPhase::kRunning,
             .round = Round(4),
             .instance = FirstInstanceOf(ServerTerm(1)),
             .num_nodes = 1000000,
             .node = Describe("node1"),
             .settings = Settings(3, 3, 1)});
  EXPECT_TRUE(std::holds_alternative<Wait>(Joining(9).body));
  now_ = now_ + absl::Seconds(7);
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(9).body));
}

TEST_F(ForgetfulServerTest, GivesUpAnInstanceWithoutARoundForOneThatRuns) {
  Joining(9, {}, 2);
  EXPECT_EQ(table_.size(), 1u);
  EXPECT_TRUE(IsLeftAlone(1));
  EXPECT_EQ(table_.size(), 0u);
}

// A host that was started again, or one that was quicker than the agents of the round.
TEST_F(ForgetfulServerTest, ANewcomerThatWasQuickerThanTheWorkersAgentsWaitsAsAnyOther) {
  const Instance begun = Joining(9, {}, 2).instance;
  EXPECT_TRUE(IsLeftAlone(1));
  AgentReport again{.sequence = ++sequence_,
                    .instance = begun,
                    .node = Describe("node9"),
                    .settings = Settings(2, 2, 1)};
  const Directive waits = Answer(9, again);
  ASSERT_TRUE(std::holds_alternative<Wait>(waits.body)) << ToString(waits.body);
  EXPECT_THAT(std::get<Wait>(waits.body).text, HasSubstr("still runs on node1"));
  now_ = now_ + absl::Seconds(7);  // node1 is silent, and nobody else is known
  again.sequence = ++sequence_;
  const Directive begins = Answer(9, again);
  ASSERT_TRUE(std::holds_alternative<Wait>(begins.body)) << ToString(begins.body);
  EXPECT_EQ(begins.instance, begun);
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(10, {}, 2).body));
}

TEST_F(ForgetfulServerTest, ANewcomerThatWasDrainedHasNoPlaceOnceItsInstanceBeginsAgain) {
  const Instance begun = Joining(9, {}, 3).instance;
  Joining(10, {}, 3);
  table_.OnStopRequest(kJob, Incarnation(99), {.node = "node9"}, now_);
  EXPECT_TRUE(IsLeftAlone(1));
  now_ = now_ + absl::Seconds(7);  // node1 is silent
  AgentReport again{.sequence = ++sequence_,
                    .instance = begun,
                    .node = Describe("node9"),
                    .settings = Settings(3, 3, 1)};
  for (int i = 0; i < 2; ++i) {
    again.sequence = ++sequence_;
    const Directive told = Answer(9, again);
    ASSERT_TRUE(std::holds_alternative<EndJob>(told.body)) << ToString(told.body);
  }
  EXPECT_EQ(table_.size(), 0u);
}

// A report of node2 from before its assignment came late, and began an instance; node2 took that
// for its own.
TEST_F(ForgetfulServerTest, AnInstanceThatWasPutOffHasNotEndedForWhoRunsUnderIt) {
  const Instance begun = Joining(2, {}, 3).instance;
  EXPECT_TRUE(IsLeftAlone(1));
  EXPECT_TRUE(IsToldToJoinAnew(Answer(2, {.sequence = ++sequence_,
                                          .phase = AgentPhase::kRunning,
                                          .round = Round(4),
                                          .instance = begun,
                                          .node = Describe("node2"),
                                          .settings = Settings(3, 3, 1)})));
}

TEST_F(ForgetfulServerTest, TellsAllToJoinAnewOnceAMemberHasFailed) {
  Running(1);
  EXPECT_TRUE(IsToldToJoinAnew(Running(2, AgentPhase::kFailed, {{.exit_code = 7}})));
  EXPECT_TRUE(IsToldToJoinAnew(Running(1)));
}

TEST_F(ForgetfulServerTest, TellsAllToJoinAnewOnceAMemberHasLeft) {
  Running(1);
  EXPECT_TRUE(std::holds_alternative<Wait>(Running(2, AgentPhase::kLeaving).body));
  EXPECT_TRUE(IsToldToJoinAnew(Running(1)));
}

TEST_F(ForgetfulServerTest, EndsTheJobWhenAFailureComesAfterTheLastRestart) {
  Running(1);
  const Directive directive = Running(2, AgentPhase::kFailed, {{.exit_code = 7}}, 1);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, 7);
  EXPECT_TRUE(std::holds_alternative<EndJob>(Running(1).body));
}

TEST_F(ForgetfulServerTest, AMemberThatIsHeardAgainAfterItHasLeftHasSucceededOnce) {
  Running(1, AgentPhase::kSucceeded);
  Running(2, AgentPhase::kSucceeded);
  Running(2, AgentPhase::kLeaving);
  const Directive late = Running(2, AgentPhase::kSucceeded);
  EXPECT_FALSE(std::holds_alternative<EndJob>(late.body)) << ToString(late.body);
}

TEST_F(ForgetfulServerTest, EndsTheJobWhenAllMembersHaveSucceeded) {
  Running(1, AgentPhase::kSucceeded);
  Running(2, AgentPhase::kSucceeded);
  EXPECT_TRUE(IsLeftAlone(1));
  const Directive directive = Running(3, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, 0);
  EXPECT_TRUE(std::holds_alternative<EndJob>(Running(1, AgentPhase::kSucceeded).body));
}

// One of them lies, and is heard first.
// It would be begun later, by others, and have ended already.
TEST_F(ForgetfulServerTest, BelievesNobodyThatAnInstanceWhichItHasNotBegunHasARound) {
  const Instance next = FirstInstanceOf(ServerTerm(2));
  AgentReport lie{.sequence = ++sequence_,
                  .phase = AgentPhase::kStopped,
                  .round = Round(0),
                  .instance = next,
                  .num_nodes = 1,
                  .past = {.restarts_used = 1},
                  .node = Describe("node1"),
                  .settings = Settings(1, 1, 1),
                  .failures = {{.exit_code = 7}}};
  EXPECT_TRUE(IsToldToJoinAnew(Answer(1, lie)));
  EXPECT_EQ(Joining(9).instance, next);
  const Directive end = Report(kJob, 9, AgentPhase::kSucceeded, Round(0), next);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(10).body));
  EXPECT_EQ(Report(kJob, 9, AgentPhase::kSucceeded, Round(0), next).body, end.body);
}

TEST_F(ForgetfulServerTest, BelievesOfASizeOfTheRoundAsManyAsItHas) {
  for (const int lie : {-1, 0, 2, 4, 1000}) {
    JobTable table({.term = ServerTerm(2)});
    const auto say = [&](uint64_t from, AgentPhase phase, int num_nodes) {
      const AgentReport report{.sequence = ++sequence_,
                               .phase = phase,
                               .round = Round(4),
                               .instance = FirstInstanceOf(ServerTerm(1)),
                               .num_nodes = num_nodes,
                               .node = Describe("node" + std::to_string(from)),
                               .settings = Settings(2, 4, 1)};
      return table.OnReport(kJob, Incarnation(from), report, now_);
    };
    const auto has_ended = [](const std::vector<JobTable::JobEffect>& effects) {
      return std::any_of(effects.begin(), effects.end(), [](const auto& effect) {
        const auto* send = std::get_if<SendDirective>(&effect.effect);
        return send != nullptr && std::holds_alternative<EndJob>(send->directive.body);
      });
    };
    EXPECT_FALSE(has_ended(say(9, AgentPhase::kSucceeded, lie))) << lie;
    EXPECT_FALSE(has_ended(say(1, AgentPhase::kSucceeded, 3))) << lie;
    EXPECT_FALSE(has_ended(say(2, AgentPhase::kSucceeded, 3))) << lie;
    EXPECT_TRUE(has_ended(say(3, AgentPhase::kSucceeded, 3))) << lie;
  }
}

TEST_F(ForgetfulServerTest, BeginsNoRoundBeforeThoseItToldToJoinAnewHaveStopped) {
  Running(1);
  Running(2, AgentPhase::kFailed, {{.exit_code = 7}});
  EXPECT_TRUE(IsToldToJoinAnew(Running(1)));
  const Directive newcomer = Joining(2);  // node 2 has stopped, node 1 has not
  ASSERT_TRUE(std::holds_alternative<Wait>(newcomer.body));
  EXPECT_THAT(std::get<Wait>(newcomer.body).text, HasSubstr("waiting for node1 to stop"));
  AgentReport stopping{.sequence = ++sequence_,
                       .phase = AgentPhase::kRunning,
                       .round = Round(4),
                       .node = Describe("node1"),
                       .settings = Settings(1, 1, 1)};
  EXPECT_TRUE(std::holds_alternative<Wait>(Answer(1, stopping).body));
  EXPECT_TRUE(std::holds_alternative<Wait>(Joining(2).body));
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(1).body));
}

TEST_F(ForgetfulServerTest, IsNotMisledByASpareOfALifeThatFormedNoRound) {
  Running(1);
  AgentReport spare{.sequence = ++sequence_,
                    .instance = Instance(FirstInstanceOf(ServerTerm(1)).value() + 9),
                    .node = Describe("node9"),
                    .settings = Settings(1, 1, 1)};
  EXPECT_TRUE(IsToldToJoinAnew(Answer(9, spare)));
  EXPECT_TRUE(std::holds_alternative<Wait>(Joining(9).body));
  EXPECT_TRUE(IsLeftAlone(1));
}

TEST_F(ForgetfulServerTest, TellsANewcomerThatWaitedHowTheRoundEnded) {
  Running(1, AgentPhase::kSucceeded);
  Running(2);
  EXPECT_TRUE(std::holds_alternative<Wait>(Joining(9).body));
  Running(2, AgentPhase::kSucceeded);
  Running(3, AgentPhase::kSucceeded);
  const Directive directive = Joining(9);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, 0);
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(10).body)) << "one that comes later begins";
}

TEST_F(ForgetfulServerTest, AnInstanceThatWasPutOffAndHasEndedIsNotBegunAgain) {
  const Instance begun = Joining(9, {}, 3).instance;
  Joining(10, {}, 3);
  const auto say_again = [&](uint64_t from) { return JoiningStill(from, begun); };
  Running(1, AgentPhase::kSucceeded);
  EXPECT_TRUE(std::holds_alternative<Wait>(say_again(9).body));
  Running(2, AgentPhase::kSucceeded);
  Running(3, AgentPhase::kSucceeded);
  const Directive end = say_again(9);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_EQ(end.instance, begun);
  const Directive later = Joining(11, {}, 3);
  EXPECT_TRUE(std::holds_alternative<Wait>(later.body)) << ToString(later.body);
  EXPECT_GT(later.instance, begun);
  const Directive other = say_again(10);
  ASSERT_TRUE(std::holds_alternative<EndJob>(other.body)) << ToString(other.body);
  EXPECT_EQ(other.instance, begun);
  EXPECT_EQ(std::get<EndJob>(other.body), std::get<EndJob>(end.body));
}

// Nobody is left whom they would wait for.
TEST_F(ForgetfulServerTest, AnInstanceThatHasBegunWithoutARoundEndsWithTheRoundThatHasFailed) {
  const Instance begun = Joining(9, {}, 3).instance;
  Running(1, AgentPhase::kStopped, {{.exit_code = 7}}, /*restarts_used=*/1);
  const Directive end = JoiningStill(9, begun);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_EQ(std::get<EndJob>(end.body).outcome.exit_code, 7);
  EXPECT_GT(Joining(10, {}, 3).instance, begun);
}

// It is first heard of when the others have said how the round ended.
TEST_F(ForgetfulServerTest, NewcomersWaitForAMemberThatIsToldOfTheEndUntilItHasStopped) {
  Running(1, AgentPhase::kStopped, {{.exit_code = 7}}, /*restarts_used=*/1);
  EXPECT_TRUE(std::holds_alternative<EndJob>(Running(2).body));
  const Directive newcomer = Joining(9);
  ASSERT_TRUE(std::holds_alternative<Wait>(newcomer.body)) << ToString(newcomer.body);
  EXPECT_THAT(std::get<Wait>(newcomer.body).text, HasSubstr("waiting for node2 to stop"));
  EXPECT_TRUE(std::holds_alternative<EndJob>(Running(2, AgentPhase::kStopped).body));
  EXPECT_TRUE(std::holds_alternative<RunRound>(Joining(10).body));
}

// A round of a life in between is heard of once the first one has ended.
TEST_F(ForgetfulServerTest, NeitherIsItAfterALaterRoundWithoutARecord) {
  const Instance begun = Joining(9, {}, 3).instance;
  Running(1);
  Running(2, AgentPhase::kStopped, {{.exit_code = 7}}, /*restarts_used=*/1);
  const Directive end = JoiningStill(9, begun);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_EQ(end.instance, begun);
  AgentReport later{.sequence = ++sequence_,
                    .phase = AgentPhase::kLeaving,
                    .round = Round(0),
                    .instance = FirstInstanceOf(ServerTerm(1)).Next(),
                    .num_nodes = 1,
                    .node = Describe("node5"),
                    .settings = Settings(3, 3, 1)};
  Answer(5, later);
  EXPECT_GT(Joining(11, {}, 3).instance, begun);
  EXPECT_EQ(JoiningStill(9, begun).body, end.body) << "as it was told before";
}

// It has waited for the round before, whose member 1 had not heard that it was over.
TEST_F(ForgetfulServerTest, TellsANewcomerThatWaitedHowALaterRoundEnded) {
  Running(1);
  EXPECT_TRUE(std::holds_alternative<Wait>(Joining(9).body));
  Answer(2, {.sequence = ++sequence_,
             .phase = AgentPhase::kStopped,
             .round = Round(5),
             .instance = FirstInstanceOf(ServerTerm(1)),
             .num_nodes = 3,
             .past = {.restarts_used = 1},
             .node = Describe("node2"),
             .settings = Settings(3, 3, 1),
             .failures = {{.exit_code = 7}}});
  const Directive end = Joining(9);
  ASSERT_TRUE(std::holds_alternative<EndJob>(end.body)) << ToString(end.body);
  EXPECT_EQ(std::get<EndJob>(end.body).outcome.exit_code, 7);
}

TEST_F(ForgetfulServerTest, EndsThoseThatSucceededWith75WhenTheOthersNeverCome) {
  for (int seconds = 0; seconds < 600; seconds += 2) {
    Running(1, AgentPhase::kSucceeded);
    now_ = now_ + absl::Seconds(2);
  }
  const Directive directive = Running(1, AgentPhase::kSucceeded);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, kExitServerLost);
}

TEST_F(ForgetfulServerTest, AnswersALateReportOfAnEarlierInstanceWithThePresent) {
  AgentReport late{.sequence = 1,
                   .phase = AgentPhase::kRunning,
                   .round = Round(4),
                   .instance = FirstInstanceOf(ServerTerm(1)),
                   .num_nodes = 1,
                   .node = Describe("node1"),
                   .settings = Settings(1, 1, 1)};
  sequence_ = 1;
  Joining(1);
  EXPECT_TRUE(std::holds_alternative<RunRound>(Answer(1, late).body));
}

TEST_F(ForgetfulServerTest, GoesOnCountingAttemptsAndRestartsWhereAgentsRemember) {
  const Directive directive = Joining(1, {.attempts = 5, .restarts_used = 1});
  ASSERT_TRUE(std::holds_alternative<RunRound>(directive.body));
  const Assignment& assignment = std::get<RunRound>(directive.body).assignment;
  EXPECT_EQ(assignment.restart_count, 5);
  EXPECT_EQ(assignment.restarts_used, 1);
}

TEST_F(ForgetfulServerTest, NeverNumbersAnInstanceAsAnEarlierLifeDid) {
  EXPECT_GT(FirstInstanceOf(TermOfStart(1001)).value(),
            FirstInstanceOf(TermOfStart(1000)).value() + 1000000);
  EXPECT_GE(Joining(1).instance, FirstInstanceOf(ServerTerm(2)));
}

TEST_F(JobTableTest, ForgetsAJobWhoseOnlyNodeIsRefused) {
  EXPECT_EQ(Refusal(Report(kA, 1, AgentPhase::kJoining, kNoRound, Instance(), 0)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(JobTableTest, RefusesMoreJobsThanItMayHave) {
  table_ = JobTable({.term = ServerTerm(1), .max_jobs = 1});
  Report(kA, 1, AgentPhase::kJoining);
  EXPECT_EQ(Refusal(Report(kB, 2, AgentPhase::kJoining)).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(JobTableTest, StartsANewInstanceAtOnceWhenEveryAgentOfTheEndedOneIsTold) {
  const Instance first = RunToTheEnd(kA, 1).instance;
  const Directive directive = Report(kA, 2, AgentPhase::kJoining);
  EXPECT_TRUE(std::holds_alternative<RunRound>(directive.body));
  EXPECT_GT(directive.instance, first);
}

TEST_F(JobTableTest, KeepsAJobOfWhichNobodyIsHeardForAWhile) {
  const Instance first = Report(kA, 1, AgentPhase::kJoining, kNoRound, Instance(), 2).instance;
  now_ = now_ + absl::Seconds(60);
  table_.Tick(now_);
  EXPECT_EQ(table_.size(), 1u);
  const Directive directive = Report(kA, 2, AgentPhase::kJoining, kNoRound, Instance(), 2);
  EXPECT_TRUE(std::holds_alternative<RunRound>(directive.body));
  EXPECT_EQ(directive.instance, first);
}

TEST_F(JobTableTest, TellsALatecomerHowItsInstanceEnded) {
  const Instance first = RunToTheEnd(kA, 1).instance;
  table_.OnDisconnect(kA, Incarnation(1), now_);
  EXPECT_EQ(table_.size(), 0u);
  const Directive directive = Report(kA, 9, AgentPhase::kRunning, Round(0), first);
  ASSERT_TRUE(std::holds_alternative<EndJob>(directive.body));
  EXPECT_EQ(std::get<EndJob>(directive.body).outcome.exit_code, 0);
}

class ScheduledJobTableTest : public JobTableTest {
 protected:
  ScheduledJobTableTest()
      : JobTableTest({.term = ServerTerm(1), .node_names = {"node1", "node2"}}) {}
};

TEST_F(ScheduledJobTableTest, TellsANodeOfTheJobThatComesTooLateHowItEnded) {
  RunToTheEnd(kA, 1);
  EXPECT_TRUE(std::holds_alternative<EndJob>(Report(kA, 2, AgentPhase::kJoining).body));
  EXPECT_TRUE(std::holds_alternative<EndJob>(Report(kA, 2, AgentPhase::kJoining).body));
  EXPECT_TRUE(std::holds_alternative<RunRound>(Report(kA, 3, AgentPhase::kJoining).body));
}

TEST_F(JobTableTest, ForgetsHowAnInstanceEndedAfterTheCloseTimeout) {
  const Instance first = RunToTheEnd(kA, 1).instance;
  table_.OnDisconnect(kA, Incarnation(1), now_);
  now_ = now_ + absl::Seconds(20);
  EXPECT_EQ(Refusal(Report(kA, 9, AgentPhase::kRunning, Round(0), first)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobTableTest, ForgetsARetiredJobByATickAtItsDeadline) {
  RunToTheEnd(kA, 1);
  now_ = At(120);
  while (table_.NextDeadline() <= now_) table_.Tick(table_.NextDeadline());
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_TRUE(table_.NextDeadline().is_infinite());
}

TEST_F(JobTableTest, NumbersDirectivesSoThatANewInstanceIsNeverOlder) {
  const uint64_t before = RunToTheEnd(kA, 1).revision;
  EXPECT_GT(Report(kA, 2, AgentPhase::kJoining).revision, before);
}

TEST_F(JobTableTest, ServesTheStoreOfTheRoundToItsMembersOnly) {
  const Instance instance = Report(kA, 1, AgentPhase::kJoining).instance;
  const StoreRequest request{1, Round(0), StoreSet{"k", "v"}, instance};
  const auto replies = table_.OnStoreRequest(kA, Incarnation(1), request, now_);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_TRUE(std::get<SendStoreReply>(replies[0].effect).reply.status.ok());
  const auto refused = table_.OnStoreRequest(kA, Incarnation(2), request, now_);
  EXPECT_EQ(std::get<SendStoreReply>(refused[0].effect).reply.status.code(),
            absl::StatusCode::kAborted);
}

TEST_F(JobTableTest, AnswersStoreWaitsAtTheirDeadline) {
  const Instance instance = Report(kA, 1, AgentPhase::kJoining).instance;
  table_.OnStoreRequest(kA, Incarnation(1),
                        {1, Round(0), StoreWait{{"k"}, absl::Seconds(2)}, instance}, now_);
  EXPECT_EQ(table_.NextDeadline(), now_ + absl::Seconds(2));
  const auto effects = table_.Tick(now_ + absl::Seconds(2));
  ASSERT_FALSE(effects.empty());
  EXPECT_EQ(std::get<SendStoreReply>(effects[0].effect).reply.status.code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(JobTableTest, TellsEveryJobThatTheHostLeaves) {
  Report(kA, 1, AgentPhase::kJoining, kNoRound, Instance(), 2);
  Report(kB, 2, AgentPhase::kJoining, kNoRound, Instance(), 2);
  table_.OnHostLeaving({.signal = SIGTERM, .reason = "told to end"}, "node9", now_);
  EXPECT_EQ(table_.FindState(kA)->phase, JobPhase::kEnded);
  EXPECT_EQ(table_.FindState(kB)->phase, JobPhase::kEnded);
}

// The next server at the endpoint may be the one that it was started with.
TEST_F(EmbeddedJobTableTest, DoesNotEndWhoCameAfterTheEndOfTheHostsJob) {
  table_.SetHost(Incarnation(1));
  RunToTheEnd(kA, 1);
  Report(kA, 2, AgentPhase::kJoining, kNoRound, Instance(), 2);
  EXPECT_THAT(table_.OnHostLeaving({.reason = "the job has ended"}, "node1", now_),
              testing::IsEmpty());
  EXPECT_EQ(table_.FindState(kA)->phase, JobPhase::kForming);
}

}  // namespace
}  // namespace muster::rendezvous

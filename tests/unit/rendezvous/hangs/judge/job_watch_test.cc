#include "rendezvous/hangs/judge/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr Round kRound(2);

// A job of several nodes with one rank each, whose agents say a summary every two seconds and
// answer what they are asked.
class Watch : public ::testing::Test {
 protected:
  struct Agent {
    bool speaks = true;   // summaries
    bool answers = true;  // questions
    bool shows_stacks = true;
    bool ends_workers = true;
    bool may_replace = false;
    bool has_moved = false;  // when stacks are read
    absl::Duration silent_for;
    RankEvidence evidence;
    std::vector<Group> groups;
    LearnedSilences learned;
    NodePaces paces;
    int64_t arrival_window = 0;
    int num_ended = 0;
    std::vector<GroupArrivals> arrivals;
    std::vector<Gathering> gatherings;
    WatchPhase phase = WatchPhase::kStep;
  };

  // Starts a round of as many nodes as `job` has ranks.
  void Start(const EvidenceBuilder& job, absl::Duration hang_timeout = absl::Minutes(10)) {
    hang_timeout_ = hang_timeout;
    const Evidence evidence = job.Build();
    std::vector<WatchedNode> nodes;
    for (const RankEvidence& rank : evidence.ranks) {
      const Incarnation id(100 + rank.rank);
      nodes.push_back({id, absl::StrCat("node", rank.rank), rank.rank, 1});
      agents_[id] = {.evidence = rank, .groups = evidence.groups};
    }
    watch_.StartRound(kRound, std::move(nodes), now_);
  }
  Agent& agent(int rank) { return agents_.at(Incarnation(100 + rank)); }

  NodeSummary SummaryOf(const Agent& agent) const {
    return {
        .round = kRound,
        .hang_timeout = hang_timeout_,
        .ends_workers = agent.ends_workers,
        .may_replace = agent.may_replace,
        .silent = Summarize({{agent.evidence.rank, agent.phase, agent.silent_for}}),
        .learned = agent.learned,
        .paces = agent.paces,
        .silence_at_start = agent.gatherings.empty() ? absl::ZeroDuration() : gathering_silent_for_,
        .arrival_window = agent.arrival_window,
        .num_ended = agent.num_ended};
  }

  void Answer(Incarnation id, const AskDetails& ask) {
    const Agent& agent = agents_.at(id);
    ++num_questions_;
    if (!agent.answers) return;
    NodeDetails details{.question = ask.question, .summary = SummaryOf(agent)};
    details.evidence = {.round = kRound, .groups = agent.groups, .ranks = {agent.evidence}};
    details.is_held = is_held_;
    details.gatherings = agent.gatherings;
    for (Gathering& gathering : details.gatherings) gathering.silent_for = gathering_silent_for_;
    Hear(watch_.OnWord(id, details, now_));
  }
  void Answer(Incarnation id, const AskStacks& ask) {
    const Agent& agent = agents_.at(id);
    if (!agent.answers || !agent.shows_stacks) return;
    RankReport report{.rank = agent.evidence.rank, .pid = 7, .frames = {"f"}};
    if (agent.evidence.life == Life::kEnded) report.pid = 0;
    Hear(watch_.OnWord(id, NodeStacks{ask.question, kRound, {report}, agent.has_moved}, now_));
  }
  void Answer(Incarnation id, const SayNotice& say) { notices_[id].push_back(say.text); }
  void Answer(Incarnation id, const SayRecovery& say) { recoveries_[id].push_back(say.text); }
  void Answer(Incarnation id, const SaySlow& say) { slow_[id].push_back(say.text); }
  void Answer(Incarnation id, const SayVerdict& say) { verdicts_[id].push_back(say); }
  void Answer(Incarnation, const AskLastCalls&) {}  // abort_watch_test.cc
  void Answer(Incarnation, const SayAborts&) {}
  void Answer(Incarnation id, const AskArrivals& ask) {
    const Agent& agent = agents_.at(id);
    if (!agent.answers) return;
    Hear(watch_.OnWord(id, NodeArrivals{ask.question, kRound, agent.arrivals}, now_));
  }

  void Hear(const JobWatch::Orders& orders) {
    for (const auto& order : orders) {
      if (const auto* replace = std::get_if<ReplaceNodes>(&order)) {
        replaced_.push_back(*replace);
        EXPECT_THAT(verdicts_, Not(IsEmpty())) << "nodes hear why before they are stopped";
        continue;
      }
      const OrderTo& to = std::get<OrderTo>(order);
      std::visit([&](const auto& each) { Answer(to.to, each); }, to.order);
    }
  }

  // `busy` ranks do something each second.
  void Pass(int seconds, const std::vector<int>& busy = {}) {
    for (int i = 0; i < seconds; ++i) {
      now_ = now_ + absl::Seconds(1);
      ++second_;
      for (auto& [id, agent] : agents_) agent.silent_for += absl::Seconds(1);
      gathering_silent_for_ += absl::Seconds(1);
      for (const int rank : busy) agent(rank).silent_for = absl::ZeroDuration();
      for (auto& [id, each] : agents_) {
        if (each.speaks && second_ % 2 == 0) Hear(watch_.OnWord(id, SummaryOf(each), now_));
      }
      if (watch_.NextDeadline() <= now_) Hear(watch_.Tick(now_));
    }
  }

  static EvidenceBuilder RankTwoIsMissing() {
    EvidenceBuilder job(4);
    const int world = job.AddWorld();
    job.AllWaitBut({2}, world, AllReduce(7));
    return job;
  }

  const std::vector<SayVerdict>& VerdictsOf(int rank) { return verdicts_[Incarnation(100 + rank)]; }
  const std::vector<std::string>& NoticesOf(int rank) { return notices_[Incarnation(100 + rank)]; }

  MonoTime now_ = MonoTime::At(absl::Hours(1));
  int second_ = 0;
  absl::Duration hang_timeout_;
  absl::Duration gathering_silent_for_;
  JobWatch watch_;
  std::map<Incarnation, Agent> agents_;
  std::map<Incarnation, std::vector<std::string>> notices_;
  std::map<Incarnation, std::vector<std::string>> recoveries_;
  std::map<Incarnation, std::vector<SayVerdict>> verdicts_;
  std::map<Incarnation, std::vector<std::string>> slow_;
  std::vector<ReplaceNodes> replaced_;
  int num_questions_ = 0;
  bool is_held_ = false;
};

TEST_F(Watch, TellsEveryNodeWithinFifteenSecondsForWhomTheRanksWait) {
  Start(RankTwoIsMissing());
  Pass(15);
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_THAT(NoticesOf(rank),
                ElementsAre(AllOf(HasSubstr("rank 2 has not called all_reduce #7"),
                                  HasSubstr("rank 2 on node2"), Not(HasSubstr("nothing is")))));
  }
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, AsksForDetailsOnlyOnASuspicion) {
  Start(RankTwoIsMissing());
  Pass(1000, {0, 1, 2, 3});
  EXPECT_EQ(num_questions_, 0);
  Pass(8, {0, 1, 3});
  EXPECT_GT(num_questions_, 0);
}

TEST_F(Watch, JudgesAtTheHardLimitWithTheStacksOfThoseConcerned) {
  Start(RankTwoIsMissing(), absl::Seconds(60));
  Pass(59);
  EXPECT_THAT(verdicts_, IsEmpty());
  Pass(5);
  ASSERT_THAT(VerdictsOf(0), SizeIs(1));
  const SayVerdict& verdict = VerdictsOf(0)[0];
  EXPECT_THAT(verdict.diagnosis.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.to_end, ElementsAre(2));
  EXPECT_THAT(verdict.reason, HasSubstr("60 s (--hang_timeout)"));
  EXPECT_GE(verdict.since_detected, absl::Seconds(54)) << "after five seconds of silence";
  EXPECT_EQ(verdict.since_decided, absl::ZeroDuration());
  ASSERT_THAT(verdict.ranks, SizeIs(4));
  EXPECT_EQ(verdict.ranks[0].rank, 2);
  EXPECT_EQ(verdict.ranks[0].node, "node2");
  EXPECT_THAT(verdict.ranks[0].frames, ElementsAre("f"));
  EXPECT_THAT(VerdictsOf(3), SizeIs(1)) << "every node is told";
}

TEST_F(Watch, SaysAVerdictAgainToTheNodeThatIsToAct) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  Pass(60);
  ASSERT_GE(VerdictsOf(2).size(), 2u);
  EXPECT_EQ(VerdictsOf(2)[0].question, VerdictsOf(2)[1].question);
  EXPECT_GE(VerdictsOf(2)[1].since_decided, absl::Seconds(15)) << "as of when it is said";
  EXPECT_GE(VerdictsOf(2)[1].since_detected - VerdictsOf(2)[0].since_detected, absl::Seconds(15));
  EXPECT_THAT(VerdictsOf(0), SizeIs(1));
}

TEST_F(Watch, OnlySaysItWhereTheNodeAtFaultMayNotAct) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(2).ends_workers = false;
  Pass(60);
  ASSERT_THAT(VerdictsOf(2), SizeIs(1));
  EXPECT_THAT(VerdictsOf(2)[0].to_end, IsEmpty());
  EXPECT_THAT(VerdictsOf(2)[0].action, HasSubstr("only reported"));
}

TEST_F(Watch, TakesBackAVerdictThatIsOnlySaidWhenItGoesOn) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(2).ends_workers = false;
  Pass(60);
  ASSERT_THAT(VerdictsOf(0), SizeIs(1));
  EXPECT_THAT(recoveries_, IsEmpty());
  Pass(2, {0, 1, 2, 3});  // their nodes speak every two seconds
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_THAT(recoveries_[Incarnation(100 + rank)],
                ElementsAre(HasSubstr("it goes on: rank 2 has not called all_reduce #7")));
  }
}

TEST_F(Watch, TakesNothingBackWhereRanksMoveBecauseTheyAreEnded) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  Pass(40);
  ASSERT_THAT(VerdictsOf(2)[0].to_end, ElementsAre(2));
  Pass(15, {0, 1, 2, 3});
  EXPECT_THAT(recoveries_, IsEmpty());
}

TEST_F(Watch, AsksLessOnceItHasJudged) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(2).ends_workers = false;
  Pass(60);
  num_questions_ = 0;
  Pass(100);
  EXPECT_LE(num_questions_, 4 * 11);
  EXPECT_GE(num_questions_, 4 * 9);
}

TEST_F(Watch, CallsItOffWhenSomethingMovesWhileStacksAreRead) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(2).has_moved = true;
  Pass(60);
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(recoveries_, Not(IsEmpty()));
}

TEST_F(Watch, TheMostPatientNodeSetsTheLimit) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  NodeSummary patient = SummaryOf(agent(0));
  patient.hang_timeout = absl::Minutes(5);
  agent(0).speaks = false;
  Hear(watch_.OnWord(Incarnation(100), patient, now_));
  agent(0).answers = false;
  Pass(100);
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, JudgesAMismatchBetweenNodesInSeconds) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.Waits(0, world, AllReduce(7)).Waits(1, world, AllReduce(7)).Waits(2, world, AllReduce(7, 8));
  Start(job);
  Pass(12);
  ASSERT_THAT(VerdictsOf(0), SizeIs(1));
  EXPECT_THAT(VerdictsOf(0)[0].diagnosis.culprits, ElementsAre(2));
}

TEST_F(Watch, FollowsTheWaitingThroughGroupsOfDifferentNodes) {
  EvidenceBuilder job(4);
  const int left = job.AddGroup("left", {0, 1});
  const int across = job.AddGroup("across", {1, 2});
  const int right = job.AddGroup("right", {2, 3});
  job.Waits(0, left, AllReduce(1)).Waits(1, across, AllReduce(1)).Waits(2, right, AllReduce(1));
  Start(job);
  Pass(15);
  EXPECT_THAT(NoticesOf(0), ElementsAre(HasSubstr("rank 3 has not called")));
}

// Acceptance vector 14.
TEST_F(Watch, KeepsQuietDuringALongCheckpointOnAnotherNode) {
  Start(RankTwoIsMissing());
  agent(2).phase = WatchPhase::kCheckpoint;
  Pass(55);
  EXPECT_THAT(notices_, IsEmpty());
  Pass(900);
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, TellsEveryNodeWhichRankHasNotEndedWithinFifteenSeconds) {
  EvidenceBuilder job(3);
  job.rank(1).pid = 42;
  job.rank(1).doing = "asleep";
  Start(job);
  Pass(100, {0, 1, 2});
  EXPECT_EQ(num_questions_, 0);
  for (const int rank : {0, 2}) {
    agent(rank).num_ended = 1;
    agent(rank).evidence.life = Life::kEnded;
  }
  agent(1).evidence.silent_for = absl::Minutes(1);
  Pass(15);
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(NoticesOf(rank), ElementsAre("ranks 0 and 2 have ended; rank 1 has not: pid 42 on "
                                             "node1 is asleep"));
  }
  EXPECT_THAT(verdicts_, IsEmpty());
  agent(1).num_ended = 1;
  Pass(2);
  EXPECT_THAT(recoveries_[Incarnation(100)], ElementsAre(HasSubstr("rank 1 has ended, ")));
}

// --- What PyTorch's store, on the node of rank 0, tells of ranks of all nodes

class WatchAtTheStart : public Watch {
 protected:
  // Ranks 1 and 3 have come to init_process_group and say so; rank 0 is between two waits, and rank
  // 2 tells nothing.
  void StartWithoutRankTwo(absl::Duration hang_timeout) {
    EvidenceBuilder job(4);
    job.rank(2).is_mute = true;
    job.rank(2).silent_for = absl::Hours(1);
    Start(job, hang_timeout);
    agent(0).gatherings = {
        {.name = "init_process_group", .is_start = true, .waiting = {1, 3}, .missing = {2}}};
    for (auto& [id, each] : agents_) each.phase = WatchPhase::kStart;
  }
};

TEST_F(WatchAtTheStart, NamesARankThatHasNotComeAndTellsNothing) {
  StartWithoutRankTwo(absl::Seconds(60));
  Pass(58, {2});
  EXPECT_THAT(notices_, IsEmpty());
  Pass(6, {2});
  EXPECT_THAT(
      NoticesOf(1),
      ElementsAre(AllOf(HasSubstr("rank 2 has not called init_process_group; ranks 1 and 3 wait"),
                        HasSubstr("rank 2 on node2"))));
  Pass(110, {2});
  EXPECT_THAT(verdicts_, IsEmpty()) << "the hard limit of the start is three times as long";
  Pass(20, {2});
  ASSERT_THAT(VerdictsOf(1), SizeIs(1));
  EXPECT_THAT(VerdictsOf(1)[0].to_end, ElementsAre(2));
  ASSERT_EQ(VerdictsOf(1)[0].ranks.front().rank, 2);
  EXPECT_EQ(VerdictsOf(1)[0].ranks.front().told_by, ToldBy::kTorchStore);
}

// Rank 0 has come, and is not heard at the store any more.
TEST_F(WatchAtTheStart, NamesARankThatHasNotComeWhereNobodyTellsAnything) {
  StartWithoutRankTwo(absl::Seconds(60));
  for (auto& [id, each] : agents_) {
    each.evidence.is_mute = true;
    each.evidence.silent_for = absl::Hours(1);
  }
  Pass(58, {0, 1, 2, 3});
  EXPECT_THAT(notices_, IsEmpty());
  Pass(6, {0, 1, 2, 3});
  EXPECT_THAT(
      NoticesOf(0),
      ElementsAre(HasSubstr("rank 2 has not called init_process_group; ranks 1 and 3 wait")));
  Pass(130, {0, 1, 2, 3});
  ASSERT_THAT(VerdictsOf(0), SizeIs(1));
  EXPECT_THAT(VerdictsOf(0)[0].to_end, ElementsAre(2));
}

TEST_F(WatchAtTheStart, AsksSeldomWhereThoseWhoHaveNotComeDoSomething) {
  StartWithoutRankTwo(absl::Seconds(60));
  agent(2).evidence.is_mute = false;
  Pass(200, {0, 1, 2, 3});
  EXPECT_GT(num_questions_, 0);
  EXPECT_LE(num_questions_, 4 * 21);
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(WatchAtTheStart, WaitsForARankThatWasWatchedForLessTime) {
  StartWithoutRankTwo(absl::Seconds(60));
  agent(2).evidence.silent_for = absl::Seconds(20);  // its agent was stopped meanwhile
  Pass(1000, {2});
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(WatchAtTheStart, BelievesTheNodeOfRankZeroAlone) {
  StartWithoutRankTwo(absl::Seconds(60));
  std::swap(agent(0).gatherings, agent(1).gatherings);
  Pass(1000, {2});
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(WatchAtTheStart, AsksTheStoreOnceMoreBeforeItJudges) {
  StartWithoutRankTwo(absl::Seconds(60));
  agent(0).has_moved = true;
  Pass(300, {2});
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(recoveries_, Not(IsEmpty()));
}

TEST_F(WatchAtTheStart, JudgesNobodyOnANodeThatIsNotHeard) {
  StartWithoutRankTwo(absl::Seconds(60));
  Pass(4, {2});
  agent(2).speaks = agent(2).answers = false;
  Pass(1000);
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(WatchAtTheStart, ForgetsWhatTheStoreSaidOnceItDoesNotAnswer) {
  StartWithoutRankTwo(absl::Seconds(60));
  Pass(40, {2});
  agent(0).speaks = agent(0).answers = false;
  Pass(1000, {2});
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Watch, NeverJudgesTheRanksOfANodeThatIsNotHeard) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  Pass(4);
  agent(2).speaks = agent(2).answers = false;  // stopped, suspended, or cut off
  Pass(1000);
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(NoticesOf(0), ElementsAre(HasSubstr("rank 2 on node2 (its agent does not answer)")));
}

TEST_F(Watch, SaysWhatItCannotSeeWhereAnAgentTellsNothing) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(2).speaks = false;  // of a version before the watch, or with --watch=off
  Pass(1000);
  EXPECT_THAT(verdicts_, IsEmpty());
  EXPECT_THAT(NoticesOf(0), ElementsAre(AllOf(HasSubstr("nothing is known of rank 2 on node2"),
                                              HasSubstr("takes no part in the watch"))));
  EXPECT_THAT(NoticesOf(2), IsEmpty()) << "it could not read it";
}

TEST_F(Watch, JudgesWhatItSeesBesideANodeThatTellsNothing) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  agent(3).speaks = false;
  Pass(60);
  ASSERT_THAT(VerdictsOf(0), SizeIs(1));
  EXPECT_THAT(VerdictsOf(0)[0].diagnosis.culprits, ElementsAre(2));
  EXPECT_THAT(VerdictsOf(0)[0].reason, HasSubstr("nothing is known of rank 3 on node3"));
}

TEST_F(Watch, NeverJudgesWhileADebuggerHoldsARank) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  is_held_ = true;
  Pass(1000);
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, EndsOneOfThoseWhoWaitWhereTheRankAtFaultHasEnded) {
  EvidenceBuilder job = RankTwoIsMissing();
  job.rank(2).life = Life::kEnded;
  Start(job);
  Pass(20);
  ASSERT_THAT(VerdictsOf(0), Not(IsEmpty()));
  EXPECT_THAT(VerdictsOf(0)[0].to_end, ElementsAre(0));
}

// --- --watch=replace

class ReplacingWatch : public Watch {
 protected:
  // Starts a job that may replace nodes, with one spare, or `spares`.
  void StartReplacing(const EvidenceBuilder& job, Spares spares = {.num_nodes = 1}) {
    Start(job, absl::Seconds(30));
    for (auto& [id, agent] : agents_) agent.may_replace = true;
    watch_.SetSpares(spares);
  }
  // The attempt is ended instead, and everybody is told why.
  void ExpectRestart(const std::string& why) {
    EXPECT_THAT(replaced_, IsEmpty());
    ASSERT_THAT(VerdictsOf(0), Not(IsEmpty()));
    EXPECT_FALSE(VerdictsOf(0)[0].replaces);
    EXPECT_THAT(VerdictsOf(0)[0].to_end, Not(IsEmpty()));
    EXPECT_THAT(VerdictsOf(0)[0].action,
                AllOf(HasSubstr("ended"), HasSubstr("--watch=replace, but " + why)));
  }
};

TEST_F(ReplacingWatch, TheNodeAtFaultLeavesTheJobOnce) {
  StartReplacing(RankTwoIsMissing());
  Pass(120);
  ASSERT_THAT(replaced_, SizeIs(1));
  EXPECT_THAT(replaced_[0].nodes, ElementsAre(Incarnation(102)));
  EXPECT_THAT(replaced_[0].why, HasSubstr("hang: rank 2 has not called all_reduce #7"));
  for (const int rank : {0, 1, 2, 3}) {
    ASSERT_THAT(VerdictsOf(rank), SizeIs(1)) << "who leaves is told as well";
    EXPECT_TRUE(VerdictsOf(rank)[0].replaces);
    EXPECT_THAT(VerdictsOf(rank)[0].to_end, IsEmpty());
    EXPECT_THAT(VerdictsOf(rank)[0].action, HasSubstr("node2 leaves the job"));
  }
}

TEST_F(ReplacingWatch, AllNodesAtFaultLeaveTogetherOrNone) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  job.AllWaitBut({1, 2}, world, AllReduce(7));
  StartReplacing(job, {.num_nodes = 2});
  Pass(120);
  ASSERT_THAT(replaced_, SizeIs(1));
  EXPECT_THAT(replaced_[0].nodes, ElementsAre(Incarnation(101), Incarnation(102)));
}

TEST_F(ReplacingWatch, WhereTheJobCannotDoWithoutThemItIsRestarted) {
  EvidenceBuilder job(4);
  const int world = job.AddWorld();
  job.AllWaitBut({1, 2}, world, AllReduce(7));
  StartReplacing(job, {.num_nodes = 1});
  Pass(60);
  ExpectRestart("the job has no node to spare");
}

TEST_F(ReplacingWatch, TheHostOfTheRendezvousIsNeverReplaced) {
  StartReplacing(RankTwoIsMissing(), {.num_nodes = 1, .host = Incarnation(102)});
  Pass(60);
  ExpectRestart("node2 hosts the rendezvous");
}

TEST_F(ReplacingWatch, WhatTheProgramHasDoneWrongIsNoNodesFault) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.Waits(0, world, AllReduce(7)).Waits(1, world, AllReduce(7)).Waits(2, world, AllReduce(7, 8));
  StartReplacing(job);
  Pass(20);
  ExpectRestart("the program is at fault, not the node");
}

TEST_F(ReplacingWatch, AGuessReplacesNobody) {
  EvidenceBuilder job(4);
  job.AddWorld();
  for (const int rank : {0, 1, 2, 3}) job.rank(rank).step = rank == 2 ? 4 : 5;
  StartReplacing(job);
  Pass(200);
  ExpectRestart("which node is at fault is uncertain");
}

TEST_F(ReplacingWatch, ANodeThatHasNotShownItsStacksIsNotReplaced) {
  StartReplacing(RankTwoIsMissing());
  Pass(29);
  agent(2).shows_stacks = false;
  Pass(60);
  ExpectRestart("node2 has not shown what its ranks do");
}

TEST_F(ReplacingWatch, ANodeWithAnotherWatchIsNotReplaced) {
  StartReplacing(RankTwoIsMissing());
  agent(2).may_replace = false;
  Pass(60);
  EXPECT_THAT(replaced_, IsEmpty());
  EXPECT_THAT(VerdictsOf(0)[0].to_end, ElementsAre(2));
  EXPECT_THAT(VerdictsOf(0)[0].action, HasSubstr("(--watch=restart)"));
}

TEST_F(Watch, LearnsFromAllNodesAndAddsWhatIsNewOnce) {
  Start(RankTwoIsMissing());
  SilenceHistory seen;
  for (int i = 0; i < 20; ++i) seen.Learn(WatchPhase::kStep, absl::Seconds(20));
  for (const int rank : {0, 1}) agent(rank).learned = seen.Learned();
  Pass(10, {0, 1, 2, 3});
  EXPECT_GE(watch_.limits().Soft(WatchPhase::kStep), absl::Minutes(1)) << "40 samples are enough";
  EXPECT_EQ(watch_.limits().history().Learned().counts.at(0).count, 40);
  watch_.StopRound();
  Start(RankTwoIsMissing());
  for (const int rank : {0, 1}) agent(rank).learned = seen.Learned();
  Pass(10, {0, 1, 2, 3});
  EXPECT_EQ(watch_.limits().history().Learned().counts.at(0).count, 40) << "kept over rounds";
}

TEST_F(Watch, TellsEveryNodeOnceWhoIsSlow) {
  Start(RankTwoIsMissing());
  for (int window = 1; window <= 6; ++window) {
    for (auto& [id, agent] : agents_) {
      const bool is_slow = agent.evidence.rank == 2;
      agent.paces = {window, {absl::Milliseconds(is_slow ? 150 : 100)}};
    }
    Pass(10, {0, 1, 2, 3});
  }
  for (auto& [id, agent] : agents_) {
    EXPECT_THAT(slow_[id], ElementsAre(HasSubstr("rank 2 is slow, not hung")));
  }
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(Watch, TellsEveryNodeOnceWhoComesLastToNearlyEveryCollective) {
  Start(RankTwoIsMissing());
  for (int window = 1; window <= 6; ++window) {
    for (auto& [id, agent] : agents_) {
      const int rank = agent.evidence.rank;
      GroupArrivals group{.name = "0", .label = "default_pg"};
      for (int step = 0; step < 40; ++step) {
        const absl::Duration ago =
            (40 - step) * absl::Milliseconds(300) - absl::Milliseconds(rank == 2 ? 200 : rank);
        group.rows.push_back({.sequence = 40 * window + step,
                              .last_rank = rank,
                              .last_ago = ago,
                              .second_ago = ago,
                              .first_ago = ago});
      }
      agent.arrival_window = window;
      agent.arrivals = {group};
    }
    Pass(10, {0, 1, 2, 3});
  }
  for (auto& [id, agent] : agents_) {
    EXPECT_THAT(slow_[id], ElementsAre(HasSubstr("rank 2 is slow, not hung: it comes 197ms")));
  }
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, ComparesNothingBeforeAllNodesHaveANewWindow) {
  Start(RankTwoIsMissing());
  for (auto& [id, agent] : agents_) {
    agent.paces = {1, {absl::Milliseconds(agent.evidence.rank == 2 ? 150 : 100)}};
  }
  Pass(10, {0, 1, 2, 3});
  for (int window = 2; window <= 9; ++window) {
    for (const int rank : {0, 2, 3}) agent(rank).paces.window = window;
    Pass(10, {0, 1, 2, 3});
  }
  EXPECT_THAT(slow_, IsEmpty());
}

TEST_F(Watch, AnotherRoundBeginsWithoutSilence) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  Pass(25);
  watch_.StopRound();
  EXPECT_TRUE(watch_.NextDeadline().is_infinite());
  Start(RankTwoIsMissing(), absl::Seconds(30));
  Pass(20);
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST_F(Watch, WordsOfStrangersOfOtherRoundsAndOfOtherRanksChangeNothing) {
  Start(RankTwoIsMissing(), absl::Seconds(30));
  NodeSummary old = SummaryOf(agent(0));
  old.round = Round(1);
  old.silent = {{0, 1, WatchPhase::kStep, absl::Hours(1)}};
  EXPECT_THAT(watch_.OnWord(Incarnation(100), old, now_), IsEmpty());
  EXPECT_THAT(watch_.OnWord(Incarnation(999), SummaryOf(agent(0)), now_), IsEmpty());
  EXPECT_TRUE(watch_.NextDeadline().is_infinite());
  for (const int rank : {0, 1, 3}) agent(rank).speaks = agent(rank).answers = false;
  // Node 2 claims that everybody is silent.
  NodeSummary liar = SummaryOf(agent(2));
  liar.silent = {{0, 4, WatchPhase::kStep, absl::Hours(1)}};
  Hear(watch_.OnWord(Incarnation(102), liar, now_));
  Pass(30, {2});
  EXPECT_THAT(verdicts_, IsEmpty());
}

TEST(Summarize, SaysNothingOfRanksThatMove) {
  EXPECT_THAT(Summarize({{0, WatchPhase::kStep, absl::Seconds(1)}}), IsEmpty());
}

TEST(Summarize, MakesOneOfNeighboursThatAreSilentForTheSameTime) {
  EXPECT_THAT(Summarize({{4, WatchPhase::kStep, absl::Seconds(9)},
                         {5, WatchPhase::kStep, absl::Seconds(9)},
                         {6, WatchPhase::kStep, absl::Seconds(8)},
                         {7, WatchPhase::kCheckpoint, absl::Seconds(8)},
                         {9, WatchPhase::kCheckpoint, absl::Seconds(8)}}),
              ElementsAre(SilentRanks{4, 2, WatchPhase::kStep, absl::Seconds(9)},
                          SilentRanks{6, 1, WatchPhase::kStep, absl::Seconds(8)},
                          SilentRanks{7, 1, WatchPhase::kCheckpoint, absl::Seconds(8)},
                          SilentRanks{9, 1, WatchPhase::kCheckpoint, absl::Seconds(8)}));
}

TEST(Summarize, MakesOneOfManyNeighboursWithTheLeastSilenceOfThem) {
  std::vector<RankSilence> silences;
  for (int r = 0; r < 100; ++r) {
    silences.push_back({r, WatchPhase::kStep, absl::Seconds(9 + r % 2)});
  }
  EXPECT_THAT(Summarize(silences),
              ElementsAre(SilentRanks{0, 100, WatchPhase::kStep, absl::Seconds(9)}));
}

TEST(Summarize, HasABound) {
  std::vector<RankSilence> silences;
  for (int r = 0; r < 1000; ++r) {
    silences.push_back({2 * r, WatchPhase::kStep, absl::Seconds(9)});
  }
  EXPECT_THAT(Summarize(silences), SizeIs(kSilentRanksMax));
}

}  // namespace
}  // namespace muster::hangs

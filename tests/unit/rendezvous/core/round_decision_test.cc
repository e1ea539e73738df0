#include "rendezvous/core/round_decision.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/waiting_list.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A round being formed since second 0.
class RoundBuilder {
 public:
  explicit RoundBuilder(RendezvousSettings settings) {
    state_.settings = settings;
    for (int rank = 0; settings.is_static && rank < settings.max_nodes; ++rank) {
      state_.ranks.missing.insert(rank);
    }
  }

  RoundBuilder& Named(std::vector<std::string> names) {
    state_.ranks.names = std::move(names);
    return *this;
  }
  RoundBuilder& Joined(int n, double at = 0, std::optional<int> node_rank = std::nullopt) {
    NodeState& node = Add(n, at, node_rank);
    PutOnWaitingList(state_, node, At(at));
    if (static_cast<int>(state_.joined.size()) == state_.settings->min_nodes) {
      state_.last_call_since = At(at);
    }
    return *this;
  }
  // Has joined, and lost its connection.
  RoundBuilder& Away(int n) {
    NodeState& node = Add(n, 0, std::nullopt);
    node.connected = false;
    PutOnWaitingList(state_, node, At(0));
    return *this;
  }
  // Has joined, and is held back until `until` for its history.
  RoundBuilder& HeldBack(int n, double until) {
    NodeState& node = Add(n, 0, std::nullopt);
    state_.histories[node.report.node.name] = {.changes = 2, .held_until = At(until)};
    PutOnWaitingList(state_, node, At(0));
    return *this;
  }
  RoundBuilder& Young(double until) {
    state_.young_until = At(until);
    return *this;
  }
  RoundBuilder& LastCallSince(double at) {
    state_.last_call_since = At(at);
    return *this;
  }
  RoundBuilder& StillStopping(int n) {
    const NodeState& node = Add(n, 0, std::nullopt);
    state_.in_round.insert(node.incarnation);
    Member(n);
    return *this;
  }
  RoundBuilder& Member(int n) {
    state_.round = Round(0);
    state_.members.push_back(Incarnation(n));
    state_.assignments[Incarnation(n)] = {};
    return *this;
  }
  RoundBuilder& Lost(int n) {
    Member(n);
    state_.lost[Incarnation(n)] = "node" + std::to_string(n);
    return *this;
  }
  RoundBuilder& NotBefore(double at, int quick_ends) {
    state_.not_before = At(at);
    state_.quick_ends = quick_ends;
    return *this;
  }
  RoundDecision DecideAt(double seconds) { return DecideRound(state_, At(seconds)); }
  const JobState& state() const { return state_; }

 private:
  NodeState& Add(int n, double at, std::optional<int> node_rank) {
    NodeState& node = state_.nodes[Incarnation(n)];
    node.incarnation = Incarnation(n);
    node.first_seen = At(at);
    node.join_order = state_.next_join_order++;
    node.report.node = Describe("node" + std::to_string(n));
    node.report.node.node_rank = node_rank;
    if (node_rank) state_.ranks.claims[*node_rank] = {.holder = node.incarnation};
    return node;
  }
  JobState state_;
};

TEST(DecideRound, CompletesAtOnceWhenMaxNodesJoined) {
  const RoundDecision decision =
      RoundBuilder(Settings(2, 3)).Joined(1).Joined(2).Joined(3).DecideAt(0);
  EXPECT_EQ(decision.verdict, RoundVerdict::kComplete);
  EXPECT_EQ(decision.reason, "all 3 nodes joined");
}

TEST(DecideRound, WaitsForLastCallWhenOnlyMinNodesJoined) {
  RoundBuilder round(Settings(2, 3));
  round.Joined(1, 0).Joined(2, 5);
  const RoundDecision decision = round.DecideAt(34.9);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_EQ(decision.next_deadline, At(35));
  EXPECT_EQ(decision.reason, "2 of 2 to 3 nodes joined; last call ends in 100ms");
}

// Source: torch elastic's join operation, "last call".
TEST(DecideRound, CompletesWhenTheLastCallHasElapsed) {
  const RoundDecision decision =
      RoundBuilder(Settings(2, 3)).Joined(1, 0).Joined(2, 5).DecideAt(35);
  EXPECT_EQ(decision.verdict, RoundVerdict::kComplete);
  EXPECT_EQ(decision.reason, "last call elapsed with 2 of 2 to 3 nodes");
}

TEST(DecideRound, WaitsBelowMinNodesAndSaysHowManyAreMissing) {
  const RoundDecision decision = RoundBuilder(Settings(4, 4)).Joined(1).Joined(2).DecideAt(100);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_EQ(decision.next_deadline, At(600));
  EXPECT_EQ(decision.reason, "waiting for 2 more of 4 nodes");
}

TEST(DecideRound, NamesTheMissingNodeRanksOfAStaticJob) {
  const RoundDecision decision =
      RoundBuilder(StaticSettings(4)).Joined(1, 0, 1).Joined(2, 0, 3).DecideAt(0);
  EXPECT_EQ(decision.reason, "waiting for 2 more of 4 nodes (node ranks 0 and 2)");
}

TEST(DecideRound, NamesTheNodesOfMissingRanksWhereTheyAreKnown) {
  const RoundDecision decision =
      RoundBuilder(StaticSettings(3)).Named({"n8", "n9", "n10"}).Joined(1, 0, 1).DecideAt(0);
  EXPECT_EQ(decision.reason, "waiting for 2 more of 3 nodes (node ranks 0 (n8) and 2 (n10))");
}

TEST(DecideRound, NamesThreeMissingNodeRanksAndCountsTheRest) {
  const RoundDecision decision = RoundBuilder(StaticSettings(9)).Joined(1, 0, 0).DecideAt(0);
  EXPECT_EQ(decision.reason, "waiting for 8 more of 9 nodes (node ranks 1, 2, 3 and 5 more)");
}

TEST(DecideRound, TimesOutNamingTheMissingAndTheAgeOfThosePresent) {
  const RoundDecision decision =
      RoundBuilder(StaticSettings(4)).Joined(1, 0, 0).Joined(2, 588, 1).DecideAt(600);
  EXPECT_EQ(decision.verdict, RoundVerdict::kTimedOut);
  EXPECT_EQ(
      decision.reason,
      "2 of 4 nodes joined within 600s: node1 (joined 600s ago) and node2 (12s ago); missing: "
      "node ranks 2 and 3. Start the missing nodes or raise --rdzv_conf=join_timeout");
}

TEST(DecideRound, TimesOutNamingAtMostEightOfThosePresent) {
  RoundBuilder round(Settings(20, 20));
  for (int n = 1; n <= 12; ++n) round.Joined(n, 590);
  const RoundDecision decision = round.DecideAt(600);
  EXPECT_THAT(decision.reason, HasSubstr("node8 (10s ago) and 4 more; missing: 8 more nodes."));
}

// Enough nodes have come, so that none is missing.
TEST(DecideRound, TimesOutNamingWhoDoesNotStop) {
  const RoundDecision decision =
      RoundBuilder(Settings(2, 3)).StillStopping(3).Joined(1).Joined(2).DecideAt(600);
  EXPECT_EQ(decision.verdict, RoundVerdict::kTimedOut);
  EXPECT_THAT(decision.reason, HasSubstr("node3 did not stop its workers within 600s"));
}

TEST(DecideRound, TimesOutNamingTheLostMember) {
  const RoundDecision decision =
      RoundBuilder(Settings(2, 2)).Member(1).Lost(2).Joined(1).DecideAt(600);
  EXPECT_THAT(decision.reason, HasSubstr("1 of 2 nodes joined"));
  EXPECT_THAT(decision.reason, HasSubstr("missing: node2."));
}

TEST(DecideRound, CompletesAReformedRoundWithoutWaitingForOthersThanSurvivors) {
  const RoundDecision decision =
      RoundBuilder(Settings(2, 4)).Member(1).Member(2).Lost(3).Joined(1).Joined(2).DecideAt(0);
  EXPECT_EQ(decision.verdict, RoundVerdict::kComplete);
  EXPECT_EQ(decision.reason, "2 of 2 to 4 nodes joined again");
}

TEST(DecideRound, GivesALastCallWhenNewcomersAreNeededToReachMinNodes) {
  RoundBuilder round(Settings(2, 4));
  round.Member(1).Lost(2).Joined(1).Joined(3, 10);
  EXPECT_EQ(round.DecideAt(39).verdict, RoundVerdict::kWait);
  EXPECT_EQ(round.DecideAt(40).verdict, RoundVerdict::kComplete);
}

TEST(DecideRound, NeverCompletesWithoutAMemberThatIsStillStopping) {
  RoundBuilder round(Settings(1, 2));
  round.Member(1).Joined(1).Joined(3).StillStopping(2);
  const RoundDecision decision = round.DecideAt(500);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_THAT(decision.reason, HasSubstr("waiting for node2 to stop its workers"));
}

TEST(DecideRound, GivesAStoppingMemberItsGraceEvenIfTheJoinTimeoutIsShorter) {
  RendezvousSettings settings = Settings(1, 2);
  settings.join_timeout = absl::Seconds(1);
  RoundBuilder round(settings);
  round.StillStopping(2);
  EXPECT_EQ(round.DecideAt(44).verdict, RoundVerdict::kWait);
  EXPECT_EQ(round.DecideAt(45).verdict, RoundVerdict::kTimedOut);
}

TEST(DecideRound, HoldsBackTheNextRoundAfterQuickFailures) {
  RoundBuilder round(Settings(2, 2));
  round.Member(1).Member(2).Joined(1).Joined(2).NotBefore(3, 4);
  const RoundDecision decision = round.DecideAt(1);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_EQ(decision.next_deadline, At(3));
  EXPECT_THAT(decision.reason, HasSubstr("4 rounds in a row ended within ten seconds"));
  EXPECT_EQ(round.DecideAt(3).verdict, RoundVerdict::kComplete);
}

TEST(DecideRound, NamesADeadlineAtWhichItCanDecideOtherwise) {
  RoundBuilder round(Settings(1, 2));
  round.Member(2).Joined(1).NotBefore(60, 2);
  const RoundDecision decision = round.DecideAt(40);
  EXPECT_EQ(decision.next_deadline, At(60));
  EXPECT_EQ(round.DecideAt(60).verdict, RoundVerdict::kComplete);
}

TEST(DecideRound, DoesNotCountOneThatHasLostItsConnection) {
  RoundBuilder round(Settings(2, 2));
  round.Joined(1).Away(2);
  EXPECT_EQ(round.DecideAt(5).verdict, RoundVerdict::kWait);
  EXPECT_EQ(round.DecideAt(5).reason, "waiting for 1 more of 2 nodes");
}

TEST(DecideRound, WaitsForASurvivorThatHasLostItsConnectionUntilItIsLost) {
  RoundBuilder round(Settings(2, 4));
  round.Member(1).Member(2).Member(3).Joined(1).Joined(2).Away(3);
  const RoundDecision decision = round.DecideAt(5);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_EQ(decision.reason, "waiting for node3, which lost its connection, until its lease ends");
}

TEST(DecideRound, DoesWithoutOneThatIsHeldBackWhereItCan) {
  RoundBuilder round(Settings(2, 3));
  round.Member(1).Member(2).Joined(1).Joined(2).HeldBack(3, 60);
  EXPECT_EQ(round.DecideAt(5).verdict, RoundVerdict::kComplete);
  EXPECT_THAT(ChooseMembers(round.state()), ElementsAre(Incarnation(1), Incarnation(2)));
}

TEST(DecideRound, TakesOneThatIsHeldBackAfterTheLastCallIfItCannotDoWithout) {
  RoundBuilder round(Settings(2, 3));
  round.Member(1).Joined(1).HeldBack(2, 600).LastCallSince(0);
  EXPECT_EQ(round.DecideAt(29).verdict, RoundVerdict::kWait);
  EXPECT_EQ(round.DecideAt(30).verdict, RoundVerdict::kComplete);
  EXPECT_THAT(ChooseMembers(round.state()), ElementsAre(Incarnation(1), Incarnation(2)));
}

TEST(DecideRound, LetsAgentsOfAnEarlierLifeOfTheServerComeFirst) {
  RoundBuilder round(Settings(1, 1));
  round.Joined(1).Young(6);
  const RoundDecision decision = round.DecideAt(5);
  EXPECT_EQ(decision.verdict, RoundVerdict::kWait);
  EXPECT_EQ(decision.next_deadline, At(6));
  EXPECT_EQ(round.DecideAt(6).verdict, RoundVerdict::kComplete);
}

TEST(ChooseMembers, PrefersSurvivorsToEarlierSpares) {
  RoundBuilder round(Settings(2, 2));
  round.Joined(9).Joined(1).Joined(2).Member(1).Member(2);
  EXPECT_THAT(ChooseMembers(round.state()), ElementsAre(Incarnation(1), Incarnation(2)));
}

TEST(ChooseMembers, TakesNewcomersInOrderOfArrival) {
  RoundBuilder round(Settings(1, 2));
  round.Joined(7).Joined(3).Joined(5);
  EXPECT_THAT(ChooseMembers(round.state()), ElementsAre(Incarnation(7), Incarnation(3)));
}

}  // namespace
}  // namespace muster::rendezvous

#include "agent/core/node_standing.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeStandingTest : public ::testing::Test {
 protected:
  AgentReport Described(bool is_running = true) {
    AgentReport report;
    standing_.Describe(is_running, &report);
    return report;
  }
  NodeStanding standing_{{.name = "node1", .local_world_size = 2}};
};

TEST_F(NodeStandingTest, IsWhatItHasBeenToldOfItsPlaceAndItsPorts) {
  standing_.TakePorts({.store_port = 1, .worker_ports = {2, 3}});
  standing_.TakeInstance(Instance(7));
  standing_.TakePlace(TwoWorkers(4));
  const AgentReport report = Described();
  EXPECT_EQ(report.node.name, "node1");
  EXPECT_EQ(report.node.store_port, 1);
  EXPECT_THAT(report.node.worker_ports, ElementsAre(2, 3));
  EXPECT_EQ(report.round, Round(4));
  EXPECT_EQ(report.instance, Instance(7));
  EXPECT_EQ(report.num_nodes, 2);
  EXPECT_EQ(report.past.attempts, 5);
}

TEST_F(NodeStandingTest, TellsOfPairsThatFailedWhileTheirRoundRuns) {
  const std::vector<FailedPair> pairs = {{.from = 0, .to = 1, .fault = PairFault::kMtu}};
  standing_.TakePlace(TwoWorkers(4));
  standing_.TakeFailedPairs(pairs);
  EXPECT_EQ(Described().failed_pairs, pairs);
  EXPECT_TRUE(Described(/*is_running=*/false).failed_pairs.empty());
  standing_.TakePlace(TwoWorkers(5));
  EXPECT_TRUE(Described().failed_pairs.empty());
}

TEST_F(NodeStandingTest, ForgetsNothingOfItsPastWhereAServerCountsLess) {
  Assignment later = TwoWorkers(4);
  later.restarts_used = 3;
  standing_.TakePlace(later);
  standing_.TakePlace(TwoWorkers(1));
  EXPECT_EQ(Described().past, (JobPast{.attempts = 5, .restarts_used = 3}));
}

TEST_F(NodeStandingTest, IsOfNoInstanceUntilItJoinsAnewOnceItIsStale) {
  standing_.TakeInstance(Instance(7));
  standing_.TakePlace(TwoWorkers(4));
  standing_.BecomeStale(/*has_failed=*/false);
  standing_.TakeInstance(Instance(8));
  EXPECT_TRUE(standing_.is_stale()) << "it still stops the workers of the other instance";
  EXPECT_EQ(standing_.round(), Round(4));
  standing_.BeginJoin();
  EXPECT_EQ(standing_.round(), kNoRound);
  EXPECT_EQ(standing_.num_nodes(), 0);
  standing_.TakeInstance(Instance(8));
  EXPECT_EQ(Described().instance, Instance(8));
}

TEST_F(NodeStandingTest, KeepsItsRoundAsItJoinsTheNextOfTheSameInstance) {
  standing_.TakeInstance(Instance(7));
  standing_.TakePlace(TwoWorkers(4));
  standing_.BeginJoin();
  EXPECT_EQ(standing_.round(), Round(4));
}

TEST_F(NodeStandingTest, ChargesAFailureItselfWhenTheServerThatWouldHaveIsGone) {
  standing_.BecomeStale(/*has_failed=*/false);
  EXPECT_EQ(Described().past.restarts_used, 0);
  standing_.BecomeStale(/*has_failed=*/true);
  EXPECT_EQ(Described().past.restarts_used, 1);
}

TEST_F(NodeStandingTest, BreaksAnInvariantWhenItsReportedRoundFalls) {
  standing_.TakeInstance(Instance(7));
  standing_.PassOver(Round(5));
  Described();
  EXPECT_EQ(standing_.CheckInvariants(), "");
  standing_.PassOver(Round(4));
  EXPECT_THAT(standing_.CheckInvariants(), HasSubstr("A4"));
  standing_.BecomeStale(/*has_failed=*/false);
  EXPECT_EQ(standing_.CheckInvariants(), "") << "rounds of another instance count from zero";
}

}  // namespace
}  // namespace muster::agent

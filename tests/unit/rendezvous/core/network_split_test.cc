// A job that requires its network: who goes on where a pair fails, who waits, and who meets again.
#include "rendezvous/core/network_split.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/membership_policy.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Nodes 1 to `apart.size()`; each is apart from those that are named.
JobState StateOf(const std::vector<std::vector<int>>& apart) {
  JobState state;
  for (size_t i = 0; i < apart.size(); ++i) {
    NodeState& node = state.nodes[Incarnation(i + 1)];
    node.incarnation = Incarnation(i + 1);
    for (const int other : apart[i]) node.apart_from.insert(Incarnation(other));
  }
  return state;
}

std::vector<Incarnation> Ids(std::initializer_list<int> numbers) {
  std::vector<Incarnation> ids;
  for (const int number : numbers) ids.push_back(Incarnation(number));
  return ids;
}

TEST(ThoseTogether, AreAllWhereNobodyIsApart) {
  const JobState state = StateOf({{}, {}, {}});
  EXPECT_EQ(ThoseTogether(state, Ids({3, 1})), Ids({3, 1}));
}

TEST(ThoseTogether, AreTheLargerSide) {
  // 1 and 4 on one side, 2, 3 and 5 on the other.
  const JobState state = StateOf({{2, 3, 5}, {1, 4}, {1, 4}, {2, 3, 5}, {1, 4}});
  EXPECT_EQ(ThoseTogether(state, Ids({1, 2, 3, 4, 5})), Ids({2, 3, 5}));
}

TEST(ThoseTogether, AreTheSideOfTheFirstOfTwoAlike) {
  const JobState state = StateOf({{3, 4}, {3, 4}, {1, 2}, {1, 2}});
  EXPECT_EQ(ThoseTogether(state, Ids({1, 2, 3, 4})), Ids({1, 2}));
  EXPECT_EQ(ThoseTogether(state, Ids({4, 2, 3, 1})), Ids({4, 3}));
}

// Such a node would count as a newcomer, end the round, and be left out of the next one again.
TEST(ThoseTogether, LeaveNobodyOutWhoReachesAllThatStay) {
  const JobState state = StateOf({{3}, {4}, {1, 5}, {2, 5}, {3, 4}});
  EXPECT_EQ(ThoseTogether(state, Ids({1, 2, 3, 4, 5})), Ids({1, 2, 5}));
  EXPECT_EQ(ThoseTogether(state, Ids({2, 1, 4, 3, 5})), Ids({2, 1, 5}));
}

TEST(ThoseTogether, HeedNobodyWhoIsNotAsked) {
  const JobState state = StateOf({{2}, {1}, {}});
  EXPECT_EQ(ThoseTogether(state, Ids({1, 3})), Ids({1, 3}));
}

class NetworkSplitTest : public CoreTest {
 protected:
  // Node 1, which is node 0 of the round, says that these pairs of node ranks failed.
  void SayFailed(std::vector<FailedPair> pairs) {
    job_->Report(1).failed_pairs = std::move(pairs);
    job_->SendPhase(1, AgentPhase::kRunning);
    job_->Report(1).failed_pairs.clear();
  }
  void JoinAgain(const std::vector<int>& nodes) {
    for (const int node : nodes) job_->Join(node);
  }
  std::vector<std::string> MemberNames() const {
    std::vector<std::string> names;
    for (const Incarnation member : job_->state().members) {
      names.push_back(job_->state().nodes.at(member).report.node.name);
    }
    return names;
  }
};

TEST_F(NetworkSplitTest, TheLargerSideGoesOnAndTheOtherWaitsAsASpare) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  SayFailed({{.from = 1, .to = 2, .fault = PairFault::kTimeOut}});
  EXPECT_EQ(job.state().phase, JobPhase::kForming);
  ASSERT_NE(job.Told<StopRound>(1), nullptr);
  EXPECT_THAT(job.Told<StopRound>(1)->reason,
              AllOf(HasSubstr("goes on without node3 (--network=require): node2 "
                              "(address-of-node2) does not reach node3 (address-of-node3)"),
                    HasSubstr(": time-out")));
  JoinAgain({3, 2, 1});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_THAT(MemberNames(), ElementsAre("node1", "node2"));
  job.Join(3);
  ASSERT_NE(job.Told<Wait>(3), nullptr);
  EXPECT_EQ(job.Told<Wait>(3)->text,
            "node3 and node2 do not reach each other (--network=require); node3 is a spare");
}

TEST_F(NetworkSplitTest, TheRunningRoundDoesNotEndForANodeThatItDoesNotReach) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  SayFailed({{.from = 1, .to = 2}});
  JoinAgain({1, 2, 3});
  for (const int node : {1, 2}) job.SendPhase(node, AgentPhase::kRunning);
  EXPECT_THAT(Newcomers(job.state()), IsEmpty());
  EXPECT_EQ(NodesToSpare(job.state()), 0) << "the spare cannot take a place beside node2";
  job.Advance(900, {1, 2, 3});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_EQ(job.state().round, Round(1));
  job.Join(4);
  job.Advance(30, {1, 2, 3, 4});
  EXPECT_EQ(job.state().phase, JobPhase::kForming) << "for one that is not apart it does";
  JoinAgain({1, 2, 3});
  EXPECT_THAT(MemberNames(), ElementsAre("node1", "node2", "node4"));
}

TEST_F(NetworkSplitTest, TheJobEndsWhereTooFewNodesWouldBeLeft) {
  CoreUnderTest& job = Job(Settings(3, 3));
  job.RunWith(3);
  SayFailed({{.from = 2, .to = 0, .fault = PairFault::kNoRoute}});
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  ASSERT_TRUE(job.state().outcome.has_value());
  EXPECT_EQ(job.state().outcome->exit_code, kExitNodesMissing);
  EXPECT_EQ(job.state().outcome->reason,
            "the nodes do not all reach each other (--network=require): node3 (address-of-node3) "
            "does not reach node1 (address-of-node1): no route");
}

TEST_F(NetworkSplitTest, AStaticJobEndsSinceEveryNodeIsNeeded) {
  CoreUnderTest& job = Job(StaticSettings(2, 3));
  job.RunWith(2);
  SayFailed({{.from = 0, .to = 1}});
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  EXPECT_EQ(job.state().outcome->exit_code, kExitNodesMissing);
}

TEST_F(NetworkSplitTest, ASpareTakesThePlaceOfTheOneThatItDidNotReach) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  SayFailed({{.from = 1, .to = 2}});
  JoinAgain({1, 2, 3});
  for (const int node : {1, 2}) job.SendPhase(node, AgentPhase::kRunning);
  job.Leave(2, {.reason = "node2 left"});
  job.Join(1);
  job.Advance(31, {1, 3});  // the last call
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_THAT(MemberNames(), ElementsAre("node1", "node3"));
  EXPECT_THAT(job.state().nodes.at(Incarnation(3)).apart_from, IsEmpty());
}

TEST_F(NetworkSplitTest, NodesMeetAgainOnlyWhereThereAreTooFewOthersAndThenTheCheckDecides) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  SayFailed({{.from = 1, .to = 2}});
  JoinAgain({1, 2, 3});
  for (const int node : {1, 2}) job.SendPhase(node, AgentPhase::kRunning);
  job.Leave(1, {.reason = "node1 left"});
  job.Join(2);
  job.Advance(31, {2, 3});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  EXPECT_THAT(MemberNames(), UnorderedElementsAre("node2", "node3"));
  job.Report(2).failed_pairs = {{.from = 0, .to = 1}};
  job.SendPhase(2, AgentPhase::kRunning);
  EXPECT_EQ(job.state().phase, JobPhase::kEnding);
  EXPECT_EQ(job.state().outcome->exit_code, kExitNodesMissing);
}

TEST_F(NetworkSplitTest, WhatIsNoPairOfLiveMembersSaysNothing) {
  CoreUnderTest& job = Job(Settings(2, 3));
  job.RunWith(3);
  SayFailed({{.from = 1, .to = 1}, {.from = 0, .to = 3}, {.from = -1, .to = 0}});
  EXPECT_EQ(job.state().phase, JobPhase::kRunning);
  for (const auto& [unused, node] : job.state().nodes) EXPECT_THAT(node.apart_from, IsEmpty());
}

}  // namespace
}  // namespace muster::rendezvous

#include "agent/network/round_judgement.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<NodeReport> Nodes(int count) {
  std::vector<NodeReport> reports;
  for (int i = 0; i < count; ++i) {
    reports.push_back({.end = {.name = "node" + std::to_string(i),
                               .address = "10.0.0." + std::to_string(i + 1),
                               .interface = "eth0"},
                       .facts = {{"PyTorch", "2.15.0"}, {"kernel", "6.1"}}});
  }
  return reports;
}

TEST(CompareNodes, SaysNothingOfNodesThatAreAlike) {
  EXPECT_THAT(CompareNodes(Nodes(4)), IsEmpty());
}

TEST(CompareNodes, NamesTheOddOneOut) {
  std::vector<NodeReport> nodes = Nodes(4);
  nodes[2].facts["PyTorch"] = "2.14.1";
  EXPECT_THAT(CompareNodes(nodes), ElementsAre("PyTorch: node2 has 2.14.1, 3 nodes have 2.15.0"));
}

TEST(CompareNodes, ComparesOnlyThoseThatKnow) {
  std::vector<NodeReport> nodes = Nodes(3);
  nodes[0].facts.erase("PyTorch");
  nodes[1].facts.erase("kernel");
  EXPECT_THAT(CompareNodes(nodes), IsEmpty());
}

TEST(CompareNodes, NamesThreeOfManyOddOnes) {
  std::vector<NodeReport> nodes = Nodes(12);
  for (int i = 0; i < 5; ++i) nodes[i].facts["kernel"] = "5.15";
  EXPECT_THAT(CompareNodes(nodes), ElementsAre("kernel: node0, node1, node2 and 2 more have 5.15, "
                                               "7 nodes have 6.1"));
}

TEST(CompareNodes, NamesAClockThatIsOff) {
  std::vector<NodeReport> nodes = Nodes(3);
  nodes[1].clock_offset = 0.4;
  nodes[2].clock_offset = -90.0;
  EXPECT_THAT(CompareNodes(nodes),
              ElementsAre("clock: that of node2 is 90.0s behind that of node0"));
}

TEST(NodeReport, IsReadBack) {
  NodeReport report = Nodes(1).front();
  report.failed = {{.from = 2, .to = 3, .fault = PairFault::kMtu}};
  report.clock_offset = -2.5;
  report.requires_network = true;
  const NodeReport read = DecodeNodeReport(Encode(report));
  EXPECT_EQ(read.end.name, "node0");
  EXPECT_EQ(read.facts, report.facts);
  EXPECT_EQ(read.failed, report.failed);
  EXPECT_EQ(read.clock_offset, -2.5);
  EXPECT_TRUE(read.requires_network);
  EXPECT_FALSE(read.requires_likeness);
}

TEST(NodeReport, OfAnythingElseIsEmpty) {
  for (const char* text : {"", "[]", "{", "{\"failed\":[1,{}],\"facts\":[],\"clock\":\"now\"}"}) {
    const NodeReport read = DecodeNodeReport(text);
    EXPECT_EQ(read.end.name, "");
    EXPECT_THAT(read.failed, IsEmpty());
  }
}

TEST(JudgeRound, OnlyWarnsByDefault) {
  std::vector<NodeReport> nodes = Nodes(3);
  nodes[0].failed = {{.to = 2, .fault = PairFault::kRefused}};
  nodes[1].facts["kernel"] = "5.15";
  const RoundJudgement judgement = JudgeRound(nodes, "");
  EXPECT_THAT(judgement.network,
              ElementsAre(HasSubstr("node0 (10.0.0.1, eth0) does not reach node2 (10.0.0.3): ")));
  EXPECT_THAT(judgement.differences, SizeIs(1));
  EXPECT_EQ(judgement.refusal, "");
  EXPECT_THAT(judgement.failed, IsEmpty());
}

TEST(JudgeRound, CountsThePairsThatAreTooManyToSay) {
  std::vector<NodeReport> nodes = Nodes(40);
  for (NodeReport& node : nodes) {
    node.requires_network = true;
    for (int to = 0; to < 40; ++to) {
      if (&node != &nodes[to]) node.failed.push_back({.to = to, .fault = PairFault::kTimeOut});
    }
  }
  const RoundJudgement judgement = JudgeRound(nodes, "");
  ASSERT_THAT(judgement.network, SizeIs(kPairsSaidMax + 1));
  EXPECT_EQ(judgement.network.back(), "the check failed between 1432 more pairs of nodes");
  EXPECT_THAT(judgement.failed, SizeIs(40 * 39 / 2)) << "the rendezvous decides by all of them";
}

TEST(JudgeRound, LeavesRequiredPairsThatFailedToTheRendezvousEachOnce) {
  std::vector<NodeReport> nodes = Nodes(3);
  for (NodeReport& node : nodes) node.requires_network = true;
  nodes[0].failed = {{.to = 2, .fault = PairFault::kRefused}};
  nodes[2].failed = {{.to = 0}, {.to = 1, .fault = PairFault::kNoRoute}, {.to = 2}, {.to = 3}};
  const RoundJudgement judgement = JudgeRound(nodes, "");
  EXPECT_THAT(judgement.failed, ElementsAre(FailedPair{0, 2, PairFault::kRefused},
                                            FailedPair{2, 1, PairFault::kNoRoute}));
  EXPECT_THAT(judgement.network, SizeIs(3));
  EXPECT_EQ(judgement.refusal, "");
}

TEST(JudgeRound, RefusesWhatItCouldNotCheck) {
  std::vector<NodeReport> nodes = Nodes(2);
  nodes[0].requires_network = true;
  EXPECT_THAT(JudgeRound(nodes, "node 1 did not report").refusal,
              HasSubstr("could not be checked (--network=require): node 1 did not report"));
}

TEST(JudgeRound, RefusesUnlikeNodesWhereOneIsStrict) {
  std::vector<NodeReport> nodes = Nodes(2);
  nodes[1].facts["PyTorch"] = "1.13";
  nodes[1].requires_likeness = true;
  EXPECT_THAT(JudgeRound(nodes, "").refusal, HasSubstr("differ (--strict_nodes): PyTorch: "));
}

TEST(RoundJudgement, IsReadBack) {
  const RoundJudgement judgement{
      .network = {"a"}, .differences = {"b"}, .refusal = "c", .failed = {{1, 4}}};
  const RoundJudgement read = DecodeRoundJudgement(Encode(judgement));
  EXPECT_EQ(read.network, judgement.network);
  EXPECT_EQ(read.differences, judgement.differences);
  EXPECT_EQ(read.refusal, "c");
  EXPECT_EQ(read.failed, judgement.failed);
}

}  // namespace
}  // namespace muster::agent

#include "rendezvous/core/rank_assignment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

using testing::ElementsAre;

NodeState Node(uint64_t id, const std::string& name, std::optional<int> node_rank = std::nullopt) {
  NodeState node;
  node.incarnation = Incarnation(id);
  node.join_order = id;
  node.report.node = Describe(name);
  node.report.node.node_rank = node_rank;
  return node;
}

std::vector<uint64_t> Order(const std::vector<uint64_t>& previous,
                            const std::vector<NodeState>& joined, bool is_static = false) {
  std::vector<Incarnation> before;
  for (const uint64_t id : previous) before.push_back(Incarnation(id));
  std::vector<const NodeState*> nodes;
  for (const NodeState& node : joined) nodes.push_back(&node);
  std::vector<uint64_t> order;
  for (const Incarnation id : OrderNodes(before, nodes, is_static)) order.push_back(id.value());
  return order;
}

TEST(OrderNodes, OrdersNewcomersByNameInNaturalOrder) {
  EXPECT_THAT(Order({}, {Node(1, "node10"), Node(2, "node9"), Node(3, "node2")}),
              ElementsAre(3, 2, 1));
}

TEST(OrderNodes, OrdersNewcomersByNodeRankWhereAllHaveOne) {
  EXPECT_THAT(Order({}, {Node(1, "a", 2), Node(2, "b", 0), Node(3, "c", 1)}), ElementsAre(2, 3, 1));
}

TEST(OrderNodes, IgnoresNodeRanksIfSomeNodeHasNone) {
  EXPECT_THAT(Order({}, {Node(1, "a", 2), Node(2, "b", 0), Node(3, "c")}), ElementsAre(1, 2, 3));
}

TEST(OrderNodes, OrdersNodesOfOneNameByArrival) {
  EXPECT_THAT(Order({}, {Node(2, "host"), Node(1, "host")}), ElementsAre(1, 2));
}

TEST(OrderNodes, KeepsSurvivorsInTheirPlaces) {
  EXPECT_THAT(Order({5, 6, 7}, {Node(7, "a"), Node(6, "b"), Node(5, "c")}), ElementsAre(5, 6, 7));
}

TEST(OrderNodes, GivesAReplacementThePlaceOfTheLostNode) {
  EXPECT_THAT(Order({5, 6, 7}, {Node(5, "a"), Node(9, "z"), Node(7, "c")}), ElementsAre(5, 9, 7));
}

TEST(OrderNodes, ClosesGapsThatNobodyFills) {
  EXPECT_THAT(Order({5, 6, 7}, {Node(5, "a"), Node(7, "c")}), ElementsAre(5, 7));
}

TEST(OrderNodes, PutsFurtherNewcomersBehindThePlacesOfBefore) {
  EXPECT_THAT(Order({5, 6}, {Node(1, "a"), Node(2, "b"), Node(6, "c")}), ElementsAre(1, 6, 2));
}

TEST(OrderNodes, PlacesNodesOfAStaticJobByNodeRank) {
  EXPECT_THAT(Order({1, 2}, {Node(1, "a", 1), Node(9, "b", 0)}, true), ElementsAre(9, 1));
}

TEST(AssignRanks, NumbersRanksContiguouslyByNode) {
  NodeState a = Node(1, "a");
  NodeState b = Node(2, "b");
  a.report.node.local_world_size = 3;
  const std::vector<const NodeState*> nodes = {&a, &b};
  const std::vector<Assignment> assignments = AssignRanks(nodes, Round(4), Instance(2));
  ASSERT_EQ(assignments.size(), 2u);
  EXPECT_EQ(assignments[0].first_rank, Rank(0));
  EXPECT_EQ(assignments[1].first_rank, Rank(3));
  EXPECT_EQ(assignments[1].node_rank, NodeRank(1));
  EXPECT_EQ(assignments[1].world_size, 5);
  EXPECT_EQ(assignments[1].num_nodes, 2);
  EXPECT_EQ(assignments[1].round, Round(4));
  EXPECT_EQ(assignments[1].instance, Instance(2));
}

TEST(AssignRanks, NamesNodeZeroAsMaster) {
  const NodeState a = Node(1, "a");
  const NodeState b = Node(2, "b");
  const std::vector<const NodeState*> nodes = {&a, &b};
  const Assignment assignment = AssignRanks(nodes, Round(0), Instance(1))[1];
  EXPECT_EQ(assignment.master_address, "address-of-a");
  EXPECT_EQ(assignment.master_port, 29400);
}

std::vector<Assignment> Assign(const std::vector<NodeState>& nodes) {
  std::vector<const NodeState*> order;
  for (const NodeState& node : nodes) order.push_back(&node);
  return AssignRanks(order, Round(0), Instance(1));
}

TEST(AssignRanks, KnowsANodeOnLoopbackByTheAddressNearestToOtherMachines) {
  std::vector<NodeState> nodes = {Node(1, "a"), Node(2, "b")};
  nodes[0].report.node.address = "127.0.0.1";
  nodes[0].report.node.other_addresses = {"192.168.7.3", "10.1.0.1", "fd00::1"};
  for (const auto& [other, master] :
       {std::pair("10.1.0.2", "10.1.0.1"), std::pair("fd00::2", "fd00::1"),
        std::pair("192.168.7.9", "192.168.7.3"), std::pair("127.0.0.2", "127.0.0.1")}) {
    nodes[1].report.node.address = other;
    const Assignment assignment = Assign(nodes)[1];
    EXPECT_EQ(assignment.master_address, master) << other;
    EXPECT_EQ(assignment.peers[0].address, master) << other;
    EXPECT_EQ(assignment.peers[1].address, other);
  }
}

TEST(AssignRanks, KnowsANodeThatHasLoopbackAloneByThat) {
  std::vector<NodeState> nodes = {Node(1, "a"), Node(2, "b")};
  nodes[0].report.node.address = "::1";
  nodes[1].report.node.address = "10.1.0.2";
  EXPECT_EQ(Assign(nodes)[1].master_address, "::1");
}

TEST(AssignRanks, CountsRoleRanksAmongNodesOfTheSameRole) {
  NodeState a = Node(1, "a");
  NodeState b = Node(2, "b");
  NodeState c = Node(3, "c");
  b.report.node.role = "reader";
  const std::vector<const NodeState*> nodes = {&a, &b, &c};
  const std::vector<Assignment> assignments = AssignRanks(nodes, Round(0), Instance(1));
  EXPECT_EQ(assignments[2].role_first_rank, 2);
  EXPECT_EQ(assignments[2].role_world_size, 4);
  EXPECT_EQ(assignments[1].role_first_rank, 0);
  EXPECT_EQ(assignments[1].role_world_size, 2);
}

TEST(AssignRanks, ListsEveryPeerWithItsPorts) {
  const NodeState a = Node(1, "a");
  const NodeState b = Node(2, "b");
  const std::vector<const NodeState*> nodes = {&a, &b};
  const Assignment assignment = AssignRanks(nodes, Round(0), Instance(1))[0];
  ASSERT_EQ(assignment.peers.size(), 2u);
  EXPECT_EQ(assignment.peers[1].name, "b");
  EXPECT_THAT(assignment.peers[1].worker_ports, ElementsAre(30000, 30001));
}

TEST(AssignRanks, TellsTheOtherAddressesOfNodesToTheFirstAlone) {
  NodeState a = Node(1, "a"), b = Node(2, "b"), c = Node(3, "c");
  b.report.node.other_addresses = {"10.1.0.2", "fd00::2"};
  const std::vector<const NodeState*> nodes = {&a, &b, &c};
  const std::vector<Assignment> assignments = AssignRanks(nodes, Round(0), Instance(1));
  EXPECT_THAT(assignments[0].peers[1].other_addresses, ElementsAre("10.1.0.2", "fd00::2"));
  EXPECT_TRUE(assignments[1].peers[1].other_addresses.empty());
  EXPECT_TRUE(assignments[1].peers.IsSameAs(assignments[2].peers));  // one list for all
}

TEST(AssignRanks, LeavesPeersOutOfVeryLargeRounds) {
  std::vector<NodeState> states;
  for (int i = 0; i <= kMaxPeersInAssignment; ++i) states.push_back(Node(i + 1, "n"));
  std::vector<const NodeState*> nodes;
  for (const NodeState& state : states) nodes.push_back(&state);
  EXPECT_TRUE(AssignRanks(nodes, Round(0), Instance(1))[0].peers.empty());
}

TEST(NaturalLess, ComparesRunsOfDigitsAsNumbers) {
  EXPECT_TRUE(NaturalLess("node2", "node10"));
  EXPECT_FALSE(NaturalLess("node10", "node2"));
  EXPECT_TRUE(NaturalLess("rack1-node10", "rack2-node1"));
}

TEST(NaturalLess, ComparesNumbersTooLongForAnyInteger) {
  EXPECT_TRUE(NaturalLess("n99999999999999999999999", "n100000000000000000000000"));
}

TEST(NaturalLess, TellsNamesApartThatDifferOnlyInLeadingZeros) {
  EXPECT_NE(NaturalLess("n01", "n1"), NaturalLess("n1", "n01"));
  EXPECT_FALSE(NaturalLess("n1", "n1"));
}

TEST(NaturalLess, PutsAPrefixFirst) {
  EXPECT_TRUE(NaturalLess("node", "node1"));
  EXPECT_TRUE(NaturalLess("", "a"));
}

}  // namespace
}  // namespace muster::rendezvous

#include "agent/network/network_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A node with two networks, a container engine and a wireless card.
std::vector<Interface> Machine() {
  return {{.name = "lo", .is_loopback = true, .subnets = {{"127.0.0.1", 8}, {"::1", 128}}},
          {.name = "wlan0", .subnets = {{"192.168.7.3", 24}}},
          {.name = "docker0", .subnets = {{"172.17.0.1", 16}}},
          {.name = "eth0", .subnets = {{"10.0.0.1", 24}, {"fd00::1", 64}}},
          {.name = "eth1", .subnets = {{"10.1.0.1", 20}}}};
}

PeerAddresses Known(std::vector<std::string> addresses) {
  return {.addresses = std::move(addresses), .are_complete = true};
}

TEST(ChooseNetwork, TakesTheInterfaceThatLeadsToTheMaster) {
  const NetworkChoice choice = ChooseNetwork({}, Machine(), "10.1.0.1", {Known({"10.1.0.2"})});
  EXPECT_EQ(choice.interface, "eth1");
  EXPECT_EQ(choice.address, "10.1.0.1");
  EXPECT_EQ(choice.reason, "it leads to the master");
}

TEST(ChooseNetwork, KnowsTheOnlyInterfaceThatReachesAllPeers) {
  EXPECT_TRUE(ChooseNetwork({}, Machine(), "10.1.0.1", {Known({"10.1.0.2"}), Known({"10.1.15.9"})})
                  .is_only);
}

// NCCL would lose the second.
TEST(ChooseNetwork, IsNotOnlyWhereAnotherInterfaceReachesAllPeersToo) {
  EXPECT_FALSE(ChooseNetwork({}, Machine(), "10.1.0.1", {Known({"10.1.0.2", "10.0.0.2"})}).is_only);
  EXPECT_TRUE(ChooseNetwork({}, Machine(), "10.1.0.1",
                            {Known({"10.1.0.2", "10.0.0.2"}), Known({"10.1.0.3"})})
                  .is_only);
}

TEST(ChooseNetwork, TakesNoBridgeOfContainersForANetwork) {
  EXPECT_TRUE(
      ChooseNetwork({}, Machine(), "10.1.0.1", {Known({"10.1.0.2", "172.17.0.1", "172.17.0.9"})})
          .is_only);
}

TEST(ChooseNetwork, ClaimsNothingOfPeersWhoseOtherAddressesItDoesNotKnow) {
  EXPECT_FALSE(
      ChooseNetwork({}, Machine(), "10.1.0.1", {PeerAddresses{.addresses = {"10.1.0.2"}}}).is_only);
}

TEST(ChooseNetwork, ChoosesNothingOnLoopbackNorWhenTurnedOff) {
  const NetworkChoice loopback = ChooseNetwork({}, Machine(), "127.0.0.1", {});
  EXPECT_EQ(loopback.interface, "");
  EXPECT_THAT(loopback.reason, HasSubstr("inside one machine"));
  EXPECT_EQ(ChooseNetwork({.kind = NetworkUse::Kind::kOff}, Machine(), "10.1.0.1", {}).interface,
            "");
}

TEST(ChooseNetwork, ObeysTheName) {
  const NetworkUse named{.kind = NetworkUse::Kind::kNamed, .interface = "eth0"};
  const NetworkChoice choice = ChooseNetwork(named, Machine(), "10.1.0.1", {});
  EXPECT_EQ(choice.interface, "eth0");
  EXPECT_EQ(choice.address, "10.0.0.1");
}

TEST(IsInSubnet, ComparesBitsOfBothFamilies) {
  EXPECT_TRUE(IsInSubnet("10.1.15.9", {"10.1.0.1", 20}));
  EXPECT_FALSE(IsInSubnet("10.1.16.9", {"10.1.0.1", 20}));
  EXPECT_TRUE(IsInSubnet("fd00::9", {"fd00::1", 64}));
  EXPECT_FALSE(IsInSubnet("fd01::9", {"fd00::1", 64}));
  EXPECT_FALSE(IsInSubnet("10.1.0.2", {"fd00::1", 0}));
  EXPECT_FALSE(IsInSubnet("node2", {"10.1.0.1", 0}));
}

TEST(NetworkVariables, SetWhatIsUnsetAlone) {
  const NetworkChoice choice{.interface = "eth1", .address = "10.1.0.1", .is_only = true};
  EXPECT_THAT(NetworkVariables(choice, {{"GLOO_SOCKET_IFNAME", "eth0"}, {"VLLM_HOST_IP", ""}}),
              ElementsAre(Pair("NCCL_SOCKET_IFNAME", "=eth1"), Pair("SGLANG_HOST_IP", "10.1.0.1"),
                          Pair("TP_SOCKET_IFNAME", "eth1")));
}

TEST(NetworkVariables, LeaveNcclItsOtherInterfaces) {
  EXPECT_EQ(NetworkVariables({.interface = "eth1", .address = "10.1.0.1"}, {})
                .count("NCCL_SOCKET_IFNAME"),
            0u);
  EXPECT_THAT(NetworkVariables({}, {}), IsEmpty());
}

TEST(OtherAddresses, AreThoseThatLeadToOtherMachinesTheOutwardFirst) {
  EXPECT_THAT(OtherAddresses(Machine(), "127.0.0.1", "10.1.0.1"),
              ElementsAre("10.1.0.1", "192.168.7.3", "10.0.0.1", "fd00::1"));
  EXPECT_THAT(OtherAddresses(Machine(), "10.1.0.1", ""),
              ElementsAre("192.168.7.3", "10.0.0.1", "fd00::1"));
}

TEST(LeaveLoopback, FindsTheAddressThatOthersReach) {
  const std::vector<Interface> machine = Machine();
  const OutwardAddress found =
      LeaveLoopback("node1", "127.0.1.1", machine, FindByName(machine, "eth1"));
  EXPECT_EQ(found.address, "10.1.0.1");
  EXPECT_THAT(found.note, HasSubstr("node1 is 127.0.1.1 on this machine"));
  EXPECT_EQ(LeaveLoopback("node1", "127.0.1.1", machine, nullptr).address, "192.168.7.3");
}

TEST(LeaveLoopback, LeavesAloneWhatMeansThisMachine) {
  const std::vector<Interface> machine = Machine();
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1", "localhost.localdomain"}) {
    EXPECT_EQ(LeaveLoopback(host, "127.0.0.1", machine, nullptr).address, "") << host;
  }
  EXPECT_EQ(LeaveLoopback("node1", "10.0.0.1", machine, nullptr).address, "");
  EXPECT_EQ(LeaveLoopback("node1", "127.0.1.1", {machine.front()}, nullptr).address, "");
}

}  // namespace
}  // namespace muster::agent

#include "worker_runtime/comm/interface_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<InterfaceAddress> kMachine = {
    {.interface = "lo", .address = "127.0.0.1", .is_loopback = true},
    {.interface = "eth0", .address = "10.0.0.4"},
    {.interface = "ib0", .address = "fd00::4", .is_ipv6 = true},
    {.interface = "eth1", .address = "10.0.1.4", .is_up = false},
    {.interface = "ib1"},
};

TEST(ChooseInterface, TakesTheNamedInterface) {
  const auto chosen =
      ChooseInterface({.gloo_interfaces = "ib0", .master_addr = "127.0.0.1"}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->address, "fd00::4");
}

TEST(ChooseInterface, TakesTheFirstOfSeveralNames) {
  const auto chosen = ChooseInterface({.gloo_interfaces = "eth0,ib0"}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->address, "10.0.0.4");
}

TEST(ChooseInterface, NamesTheChoicesWhereTheInterfaceIsNone) {
  EXPECT_THAT(ChooseInterface({.gloo_interfaces = "eth7"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("GLOO_SOCKET_IFNAME=eth7: there is no interface eth7"),
                             HasSubstr("lo (127.0.0.1), eth0 (10.0.0.4), ib0 (fd00::4), eth1 "
                                       "(down), ib1 (no address)"))));
  EXPECT_THAT(ChooseInterface({.gloo_interfaces = "eth0,"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without a name")));
}

TEST(ChooseInterface, SaysThatANamedInterfaceIsDownOrHasNoAddress) {
  EXPECT_THAT(ChooseInterface({.gloo_interfaces = "eth1"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("GLOO_SOCKET_IFNAME=eth1: interface eth1 is down")));
  EXPECT_THAT(ChooseInterface({.gloo_interfaces = "ib1"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ib1 has no address")));
}

std::string ChosenByNccl(const std::string& pattern, const std::string& master = "") {
  const auto chosen =
      ChooseInterface({.nccl_interfaces = pattern, .master_addr = master}, kMachine);
  return chosen.ok() ? chosen->interface : std::string(chosen.status().message());
}

TEST(ChooseInterface, FallsBackToNcclsVariable) {
  EXPECT_EQ(ChosenByNccl("ib"), "ib0");
  EXPECT_EQ(ChosenByNccl("^lo"), "eth0");
  EXPECT_EQ(ChosenByNccl("=ib0"), "ib0");
  EXPECT_EQ(ChosenByNccl("^=eth0", "127.0.0.1"), "lo") << "the one towards the master";
  const auto named =
      ChooseInterface({.gloo_interfaces = "eth0", .nccl_interfaces = "ib"}, kMachine);
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->interface, "eth0") << "gloo's own variable comes first";
}

TEST(ChooseInterface, NamesAPatternThatFitsNothingOrOnlyWhatCannotBeUsed) {
  EXPECT_THAT(ChosenByNccl("=eth"),
              AllOf(HasSubstr("NCCL_SOCKET_IFNAME==eth: no interface of this machine fits"),
                    HasSubstr("eth0 (10.0.0.4)")));
  EXPECT_THAT(ChosenByNccl("=eth1,ib1"),
              HasSubstr("NCCL_SOCKET_IFNAME==eth1,ib1: interface eth1 is down, interface ib1 has "
                        "no address; this machine has"));
}

TEST(CheckNcclInterfaces, TakesAnyInterfaceWhereNothingIsSet) {
  EXPECT_THAT(CheckNcclInterfaces("", kMachine), IsOk());
  EXPECT_THAT(CheckNcclInterfaces("=eth0", kMachine), IsOk());
  EXPECT_THAT(CheckNcclInterfaces("", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no network interface")));
}

// Which of the names fit.
std::string Fitting(const std::string& pattern) {
  std::string out;
  for (const char* name : {"eth0", "eth1", "eth10", "ib0", "docker0", "lo"}) {
    if (ParseInterfacePattern(pattern).Matches(name)) out += std::string(name) + " ";
  }
  return out;
}

// Source: NCCL user guide, NCCL_SOCKET_IFNAME.
TEST(InterfacePattern, ListsPrefixesNamesAndExceptions) {
  EXPECT_EQ(Fitting("eth"), "eth0 eth1 eth10 ");
  EXPECT_EQ(Fitting("eth1,ib"), "eth1 eth10 ib0 ");
  EXPECT_EQ(Fitting("=eth0,eth1"), "eth0 eth1 ");
  EXPECT_EQ(Fitting("^docker,lo"), "eth0 eth1 eth10 ib0 ");
  EXPECT_EQ(Fitting("^=lo"), "eth0 eth1 eth10 ib0 docker0 ");
  EXPECT_EQ(Fitting("^=eth1"), "eth0 eth10 ib0 docker0 lo ");
}

TEST(InterfacePattern, PassesOverPortsAndEmptyElementsAsNcclDoes) {
  EXPECT_EQ(Fitting("=eth0:1,,ib0"), "eth0 ib0 ");
  EXPECT_EQ(Fitting("^"), "") << "all but all";
  EXPECT_FALSE(IsInterfacePattern("e"));
  EXPECT_FALSE(IsInterfacePattern(""));
}

TEST(ListInterfaceAddresses, FindsThisMachinesLoopback) {
  bool found = false;
  for (const InterfaceAddress& each : ListInterfaceAddresses()) {
    found = found || (each.interface == "lo" && each.is_loopback && each.is_usable());
  }
  EXPECT_TRUE(found);
}

TEST(ChooseInterface, FollowsTheRouteToTheMaster) {
  const auto chosen = ChooseInterface({.master_addr = "127.0.0.1"}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->interface, "lo");
}

TEST(ChooseInterface, AvoidsLoopbackWhereThereAreSeveralNodes) {
  const auto chosen =
      ChooseInterface({.master_addr = "127.0.0.1", .several_nodes = true}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->interface, "eth0");
  EXPECT_THAT(ChooseInterface({.master_addr = "127.0.0.1", .several_nodes = true}, {kMachine[0]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("several nodes")));
}

TEST(ChooseInterface, NamesAMasterThatCannotBeResolved) {
  EXPECT_THAT(ChooseInterface({.master_addr = "no such host"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("MASTER_ADDR=no such host cannot be resolved")));
}

}  // namespace
}  // namespace muster::comm

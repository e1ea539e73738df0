#include "worker_runtime/comm/gloo/interface_choice.h"

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
};

TEST(ChooseInterface, TakesTheNamedInterface) {
  const auto chosen =
      ChooseInterface({.interface_names = "ib0", .master_addr = "127.0.0.1"}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->address, "fd00::4");
}

TEST(ChooseInterface, TakesTheFirstOfSeveralNames) {
  const auto chosen = ChooseInterface({.interface_names = "eth0,ib0"}, kMachine);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_EQ(chosen->address, "10.0.0.4");
}

TEST(ChooseInterface, NamesTheChoicesWhereTheInterfaceIsNone) {
  EXPECT_THAT(ChooseInterface({.interface_names = "eth7"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("GLOO_SOCKET_IFNAME=eth7: there is no interface eth7"),
                             HasSubstr("lo (127.0.0.1), eth0 (10.0.0.4), ib0 (fd00::4)"))));
  EXPECT_THAT(ChooseInterface({.interface_names = "eth0,"}, kMachine),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without a name")));
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

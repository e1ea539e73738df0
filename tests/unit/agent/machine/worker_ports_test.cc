#include "agent/machine/worker_ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/status_matchers.h"

namespace muster::agent {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::Contains;
using ::testing::Not;
using ::testing::SizeIs;

int FreePort() { return PortReservation::Reserve("", 1, {})->ports()[0]; }
bool IsHeld(int port) { return !PortReservation::ReserveExact("", port).ok(); }

TEST(WorkerPorts, HoldsOneForTheStoreAndOneForEachWorker) {
  WorkerPorts ports;
  ASSERT_THAT(ports.Reserve(3, {}, 0), IsOk());
  EXPECT_THAT(ports.worker_ports(), SizeIs(3));
  EXPECT_THAT(ports.worker_ports(), Not(Contains(ports.store_port())));
  EXPECT_TRUE(IsHeld(ports.store_port()));
  for (const int port : ports.worker_ports()) EXPECT_TRUE(IsHeld(port)) << port;
}

TEST(WorkerPorts, HoldsTheMasterPortUntilARoundWithoutIt) {
  WorkerPorts ports;
  const int master = FreePort();
  ASSERT_THAT(ports.Reserve(1, {}, master), IsOk());
  EXPECT_TRUE(IsHeld(master));
  ASSERT_THAT(ports.Reserve(1, {}, master), IsOk()) << "it holds it itself";
  ASSERT_THAT(ports.Reserve(1, {}, 0), IsOk());
  EXPECT_FALSE(IsHeld(master));
}

TEST(WorkerPorts, GivesBackThoseOfTheLastRoundAlsoWhenItFails) {
  WorkerPorts ports;
  ASSERT_THAT(ports.Reserve(1, {}, 0), IsOk());
  const int held = ports.store_port();
  const auto other = PortReservation::Reserve("", 1, {});
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(ports.Reserve(1, {}, other->ports()[0]),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(IsHeld(held));
}

}  // namespace
}  // namespace muster::agent

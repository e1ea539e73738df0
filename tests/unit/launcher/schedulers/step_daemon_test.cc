#include "launcher/schedulers/step_daemon.h"

#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

TEST(MayBeDaemonOf, KnowsAStepByTheTitleOfItsDaemon) {
  EXPECT_TRUE(MayBeDaemonOf(17, 0, "slurmstepd: [17.0]"));
  EXPECT_TRUE(MayBeDaemonOf(17, 0, "slurmstepd: [17.0+1]")) << "of several components";
  for (const char* other : {"slurmstepd: [17.1]", "slurmstepd: [17.batch]", "slurmstepd: [18.0]",
                            "slurmstepd: [17.01]", "/usr/sbin/slurmstepd infinity"}) {
    EXPECT_FALSE(MayBeDaemonOf(17, 0, other)) << other;
  }
}

TEST(MayBeDaemonOf, LeavesOpenWhatATitleDoesNotSay) {
  EXPECT_TRUE(MayBeDaemonOf(12345678, 0, "slurmstepd: [1234567")) << "cut";
  EXPECT_TRUE(MayBeDaemonOf(17, 0, "/usr/sbin/slurmstepd")) << "not written yet";
}

}  // namespace
}  // namespace muster::launcher

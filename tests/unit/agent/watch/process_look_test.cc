#include "agent/watch/process_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::muster::testing::Subprocess;
using ::muster::testing::WaitUntil;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Look(pid_t pid) {
  const auto look = LookAtProcess(pid, MonoNow());
  return look ? InWords(*look, std::nullopt) : "gone";
}

TEST(LookAtProcess, TellsASleeperFromOneThatIsStopped) {
  Subprocess sleeper({.argv = {"/bin/sleep", "1000"}});
  EXPECT_TRUE(WaitUntil([&] { return Look(sleeper.pid()).starts_with("asleep"); }))
      << Look(sleeper.pid());
  sleeper.Signal(SIGSTOP);
  EXPECT_TRUE(WaitUntil([&] { return Look(sleeper.pid()) == "stopped by a signal"; }));
}

TEST(LookAtProcess, SaysHowMuchOfACoreIsUsed) {
  const ProcessLook before{.state = 'S', .cpu_ticks = 0, .at = MonoTime::At(absl::Seconds(1))};
  const ProcessLook after{
      .state = 'S', .cpu_ticks = sysconf(_SC_CLK_TCK) / 2, .at = MonoTime::At(absl::Seconds(2))};
  EXPECT_EQ(InWords(after, before), "computing (50 % of a core)");
}

TEST(LookAtProcess, NamesWhatAThreadWaitsFor) {
  EXPECT_EQ(InWords({.state = 'S', .wait_channel = "futex_wait_queue"}, std::nullopt),
            "waiting for a lock or for another thread (futex_wait_queue)");
  EXPECT_THAT(InWords({.state = 'D', .wait_channel = "nfs_wait_bit"}, std::nullopt),
              HasSubstr("uninterruptible sleep (nfs_wait_bit)"));
  EXPECT_THAT(InWords({.state = 'S', .wait_channel = "something_new"}, std::nullopt),
              StartsWith("waiting in the kernel (something_new)"));
}

TEST(LookAtProcess, IsNothingForAProcessThatHasGone) {
  EXPECT_FALSE(LookAtProcess(1 << 30, MonoNow()).has_value());
}

}  // namespace
}  // namespace muster::agent

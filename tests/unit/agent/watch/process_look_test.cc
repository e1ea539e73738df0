#include "agent/watch/process_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "agent/watch/torch_hook.h"
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
  EXPECT_TRUE(IsComputing(after, before));
  EXPECT_FALSE(IsComputing(after, std::nullopt)) << "it sleeps at the moment";
  EXPECT_FALSE(IsComputing(before, std::nullopt));
}

TEST(LookAtProcess, NamesWhatAThreadWaitsFor) {
  EXPECT_EQ(InWords({.state = 'S', .wait_channel = "futex_wait_queue"}, std::nullopt),
            "waiting for a lock or for another thread (futex_wait_queue)");
  EXPECT_EQ(InWords({.state = 'S', .wait_channel = "anon_pipe_write"}, std::nullopt),
            "writing to a pipe, a file or a device (anon_pipe_write)");
  EXPECT_THAT(InWords({.state = 'D', .wait_channel = "folio_wait_bit"}, std::nullopt),
              HasSubstr("uninterruptible sleep (folio_wait_bit)"));
  EXPECT_EQ(InWords({.state = 'D', .wait_channel = "nfs_wait_bit"}, std::nullopt),
            "waiting for a file system (nfs_wait_bit)");
  EXPECT_EQ(InWords({.state = 'S', .wait_channel = "request_wait_answer"}, std::nullopt),
            "waiting for a file system (request_wait_answer)");
  EXPECT_THAT(InWords({.state = 'S', .wait_channel = "something_new"}, std::nullopt),
              StartsWith("waiting in the kernel (something_new)"));
}

TEST(HoldOf, TellsLocksDisksAndWantOfMemoryApart) {
  using hangs::Hold;
  EXPECT_EQ(HoldOf({.state = 'S', .wait_channel = "futex_wait_queue"}, {}), Hold::kLock);
  EXPECT_EQ(HoldOf({.state = 'S', .wait_channel = "locks_lock_inode_wait"}, {}), Hold::kLock);
  EXPECT_EQ(HoldOf({.state = 'D', .wait_channel = "nfs_wait_bit_killable"}, {}), Hold::kDisk);
  EXPECT_EQ(HoldOf({.state = 'S', .wait_channel = "request_wait_answer"}, {}), Hold::kDisk);
  EXPECT_EQ(HoldOf({.state = 'D', .wait_channel = "mem_cgroup_handle_over_high"}, {}),
            Hold::kMemory);
  EXPECT_EQ(HoldOf({.state = 'S', .wait_channel = "hrtimer_nanosleep"}, {}), Hold::kUnknown);
  EXPECT_EQ(HoldOf({.state = 'R'}, {}), Hold::kUnknown);
}

TEST(HoldOf, TakesPagesThatAreReadAgainAndAgainForWantOfMemory) {
  const ProcessLook before{.state = 'D', .at = MonoTime::At(absl::Seconds(1))};
  ProcessLook after{.state = 'D', .major_faults = 500, .at = MonoTime::At(absl::Seconds(2))};
  EXPECT_EQ(HoldOf(after, before), hangs::Hold::kMemory);
  after.major_faults = 3;
  EXPECT_EQ(HoldOf(after, before), hangs::Hold::kDisk);
}

// What a process has started counts as its own, also once it has ended.
TEST(UseOfTree, CountsTimeAndBytesOfAProcessAndThoseBelowIt) {
  Subprocess quiet({.argv = {"/bin/sleep", "1000"}});
  Subprocess busy(
      {.argv = {"/bin/sh", "-c", "while :; do head -c 100000 /dev/zero > /dev/null; done"}});
  const auto before = UseOfTree(busy.pid(), CountedThreads::kOwn);
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE(WaitUntil([&] {
    const auto now = UseOfTree(busy.pid(), CountedThreads::kOwn);
    return now && now->cpu_ticks > before->cpu_ticks + 1 &&
           now->io_bytes > before->io_bytes + 100000;
  }));
  const auto use = UseOfTree(quiet.pid(), CountedThreads::kOwn);
  ASSERT_TRUE(use.has_value());
  EXPECT_LE(use->cpu_ticks, 10);
  EXPECT_FALSE(UseOfTree(1 << 30, CountedThreads::kOwn).has_value());
}

// Threads of this process that compute under names of `names`, until the end.
class Computing {
 public:
  explicit Computing(const std::vector<const char*>& names) {
    for (const char* name : names) {
      threads_.emplace_back([this, name] {
        ::prctl(PR_SET_NAME, name);
        while (!is_over_) ++num_done_;
      });
    }
  }
  ~Computing() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::atomic<int64_t> num_done_ = 0;
  std::vector<std::thread> threads_;
};

// TensorPipe's polls all the time, PyTorch's server answers the agent, and the store serves others.
TEST(UseOfTree, LeavesOutThreadsThatUseTimeWhileNothingHappens) {
  const auto use = [](CountedThreads threads) { return UseOfTree(getpid(), threads)->cpu_ticks; };
  const auto look = [] {
    return LookAtProcess(getpid(), MonoNow(), CountedThreads::kOwn)->cpu_ticks;
  };
  const int64_t own = use(CountedThreads::kOwn), all = use(CountedThreads::kAll), looked = look();
  const Computing threads(
      {"TP_SHM_reactor", "pt_workerserver", "pt_tcpstore_uv", "NCCL Progress 3", kTorchHookThread});
  EXPECT_TRUE(WaitUntil([&] { return use(CountedThreads::kAll) > all + 100; }));
  EXPECT_LT(use(CountedThreads::kOwn) - own, 50);
  EXPECT_LT(look() - looked, 50);
}

TEST(UseOfTree, CountsThreadsOfTheProgram) {
  const int64_t before = UseOfTree(getpid(), CountedThreads::kOwn)->cpu_ticks;
  const Computing threads({"pt_thread_pool", "pt_autograd_0", "python"});
  EXPECT_TRUE(WaitUntil(
      [&] { return UseOfTree(getpid(), CountedThreads::kOwn)->cpu_ticks > before + 20; }));
}

TEST(IsBusy, IsWhoComputesReadsOrWrites) {
  const ProcessUse before{.cpu_ticks = 100, .io_bytes = 1000};
  const ProcessUse computes{.cpu_ticks = 110, .io_bytes = 1000};
  const ProcessUse writes{.cpu_ticks = 100, .io_bytes = 1000 + (1 << 20)};
  const auto is_busy = [&](char state, const std::optional<ProcessUse>& now) {
    return IsBusy({.state = state}, now, before, absl::Seconds(1));
  };
  EXPECT_TRUE(is_busy('S', computes));
  EXPECT_TRUE(is_busy('S', writes));
  EXPECT_FALSE(is_busy('S', before));
  EXPECT_FALSE(is_busy('S', std::nullopt));
  EXPECT_TRUE(is_busy('R', before)) << "it waits for a core that others have";
  EXPECT_TRUE(is_busy('D', before)) << "it waits for a disk";
  EXPECT_TRUE(is_busy('Z', before)) << "it has ended, and its agent is about to hear of it";
  EXPECT_FALSE(IsBusy({.state = 'S'}, computes, std::nullopt, absl::Seconds(1)));
}

// Who reads, and gets nothing, waits; who writes out what it has written before goes on.
TEST(IsBusy, IsNotWhoAwaitsAFileSystemThatGivesNothing) {
  const ProcessUse before{.cpu_ticks = 100, .io_bytes = 1000};
  const auto is_busy = [&](const ProcessLook& look, const ProcessUse& now) {
    return IsBusy(look, now, before, absl::Seconds(1));
  };
  const ProcessLook reads{.state = 'D', .wait_channel = "folio_wait_bit", .syscall = SYS_read};
  const ProcessLook writes{.state = 'D', .wait_channel = "folio_wait_bit", .syscall = SYS_fsync};
  const ProcessLook faults{.state = 'D', .wait_channel = "folio_wait_bit", .is_in_fault = true};
  const ProcessLook unknown{.state = 'D'};
  const ProcessLook answered{
      .state = 'S', .wait_channel = "request_wait_answer", .syscall = SYS_openat};
  EXPECT_FALSE(is_busy(reads, before));
  EXPECT_FALSE(is_busy(faults, before));
  EXPECT_FALSE(is_busy(answered, before));
  EXPECT_TRUE(is_busy(writes, before));
  EXPECT_TRUE(is_busy(unknown, before));
  EXPECT_TRUE(is_busy(faults, {.cpu_ticks = 100, .io_bytes = 1000, .major_faults = 1}));
  EXPECT_TRUE(is_busy(reads, {.cpu_ticks = 100, .io_bytes = 1000 + (1 << 20)}));
  EXPECT_TRUE(IsBusy(reads, before, std::nullopt, absl::Seconds(1))) << "the first look";
}

TEST(LookAtProcess, IsNothingForAProcessThatHasGone) {
  EXPECT_FALSE(LookAtProcess(1 << 30, MonoNow()).has_value());
}

}  // namespace
}  // namespace muster::agent

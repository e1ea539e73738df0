#include "agent/watch/native_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/watch/process_look.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::muster::testing::WaitUntil;

[[gnu::noinline]] void LoadBatchForEver() {
  for (;;) pause();
}

// A child that sleeps in LoadBatchForEver.
class NativeStacks : public ::testing::Test {
 protected:
  void SetUp() override {
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) LoadBatchForEver();
  }
  void TearDown() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  bool IsInState(char state) const {
    const auto look = LookAtProcess(child_, MonoNow());
    return look && look->state == state;
  }
  std::string Stack() const {
    const auto stacks = ReadStacks(child_, MonoNow() + absl::Seconds(30));
    return stacks.ok() ? absl::StrJoin(stacks->front().frames, " < ")
                       : std::string(stacks.status().message());
  }

  pid_t child_ = -1;
};

TEST_F(NativeStacks, NameTheFunctionThatHangsAndLetTheProcessGoOn) {
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(Stack(), "LoadBatchForEver"); })) << Stack();
  EXPECT_TRUE(WaitUntil([&] { return IsInState('S'); }));
}

TEST_F(NativeStacks, LeaveAStoppedProcessStopped) {
  ASSERT_TRUE(WaitUntil([&] { return IsInState('S'); }));
  kill(child_, SIGSTOP);
  ASSERT_TRUE(WaitUntil([&] { return IsInState('T'); }));
  EXPECT_TRUE(absl::StrContains(Stack(), "LoadBatchForEver")) << Stack();
  EXPECT_TRUE(WaitUntil([&] { return IsInState('T'); }));
}

TEST_F(NativeStacks, AreNotToBeHadOfAProcessThatHasGone) {
  EXPECT_THAT(ReadStacks(1 << 30, MonoNow() + absl::Seconds(1)),
              StatusIs(absl::StatusCode::kUnavailable));
}

// Whether the kernel says that `tracer` holds the process.
bool IsHeldBy(pid_t process, pid_t tracer) {
  return absl::StrContains(testing::ReadFile(absl::StrCat("/proc/", process, "/status")),
                           absl::StrCat("TracerPid:\t", tracer, "\n"));
}

TEST(NativeStacksOfTheDead, AreKeptFromNoParentByAReaderThatLivesOn) {
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) LoadBatchForEver();
    const pid_t reader = fork();
    if (reader == 0) {
      while (ReadStacks(child, MonoNow() + absl::Seconds(30)).ok()) {
      }
      LoadBatchForEver();
    }
    while (!IsHeldBy(child, reader)) {
    }
    kill(child, SIGKILL);
    EXPECT_TRUE(WaitUntil([&] { return waitpid(child, nullptr, WNOHANG) == child; }));
    kill(reader, SIGKILL);
    waitpid(reader, nullptr, 0);
  }
}

}  // namespace
}  // namespace muster::agent

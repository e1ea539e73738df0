#include "worker_runtime/comm/gloo/sigpipe_block.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

namespace muster::comm {
namespace {

bool IsBlocked() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, SIGPIPE) == 1;
}

bool IsPending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

// What a pipe without a reader answers.
int ErrorOfWriting() {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  close(ends[0]);
  const ssize_t written = write(ends[1], "x", 1);
  const int error = errno;
  close(ends[1]);
  return written < 0 ? error : 0;
}

TEST(SigpipeBlock, LetsAWriteFailWithoutEndingTheProcess) {
  ASSERT_FALSE(IsBlocked());
  {
    const SigpipeBlock block;
    EXPECT_EQ(ErrorOfWriting(), EPIPE);
    EXPECT_TRUE(IsPending());
  }
  EXPECT_FALSE(IsPending());
  EXPECT_FALSE(IsBlocked());
}

TEST(SigpipeBlock, WithinAnotherLeavesTheSignalBlockedUntilTheOuterEnds) {
  {
    const SigpipeBlock outer;
    {
      const SigpipeBlock inner;
      EXPECT_EQ(ErrorOfWriting(), EPIPE);
    }
    EXPECT_TRUE(IsBlocked());
    EXPECT_EQ(ErrorOfWriting(), EPIPE);
  }
  EXPECT_FALSE(IsPending());
  EXPECT_FALSE(IsBlocked());
}

TEST(SigpipeBlock, IsOfOneThread) {
  const SigpipeBlock block;
  std::thread([] {
    sigset_t sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
    {
      const SigpipeBlock own;
      EXPECT_TRUE(IsBlocked());
      EXPECT_EQ(ErrorOfWriting(), EPIPE);
    }
    EXPECT_FALSE(IsBlocked());
  }).join();
}

// A signal that came before belongs to who had blocked it.
TEST(SigpipeBlock, KeepsWhatWasPendingBefore) {
  std::thread([] {
    sigset_t sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
    EXPECT_EQ(ErrorOfWriting(), EPIPE);
    { const SigpipeBlock block; }
    EXPECT_TRUE(IsPending());
    EXPECT_TRUE(IsBlocked());
  }).join();
}

}  // namespace
}  // namespace muster::comm

// A program of its own, in the launcher's binary (last_watch_image.cc): waits for the end of the
// agent and of its guardian, and ends then what the job has left in its control group. It is small,
// does nothing else, and has nothing that could fail, so that it is there when both were killed.
//
// Descriptors: 3: a pidfd of the agent; 4: a pipe that brings the guardian's pid; 5: the directory
// of the group above the job's. Argument: the job's group in it.
//
// Source: cgroup-v2.rst, "cgroup.kill"; pidfd_open(2).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int kAgent = 3;
constexpr int kPipe = 4;
constexpr int kGroupAbove = 5;
constexpr int kRemovalTurns = 500;
constexpr unsigned kRemovalPauseMicros = 20'000;

// Nothing to wait for counts as an end.
void AwaitEnd(int pidfd) {
  pollfd polled = {pidfd, POLLIN, 0};
  while (pidfd >= 0 && poll(&polled, 1, -1) < 0) continue;
}

}  // namespace

int main(int argc, char** argv) {
  // Nobody's child but that of init: it is not swept with what is below the agent.
  if (argc != 2 || fork() != 0) _exit(0);
  setsid();
  prctl(PR_SET_NAME, "muster-last");
  for (int fd = 0; fd <= 2; ++fd) close(fd);
  syscall(SYS_close_range, kGroupAbove + 1, ~0U, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  if (chdir("/") != 0) _exit(1);
  pid_t guardian = 0;
  const bool is_told = read(kPipe, &guardian, sizeof(guardian)) == sizeof(guardian);
  close(kPipe);
  AwaitEnd(is_told ? static_cast<int>(syscall(SYS_pidfd_open, guardian, 0)) : -1);
  AwaitEnd(kAgent);
  char path[512];
  snprintf(path, sizeof(path), "%s/cgroup.kill", argv[1]);
  const int kill_all = openat(kGroupAbove, path, O_WRONLY | O_CLOEXEC);
  if (kill_all >= 0 && write(kill_all, "1", 1) != 1) _exit(1);
  for (int i = 0; i < kRemovalTurns; ++i) {
    if (unlinkat(kGroupAbove, argv[1], AT_REMOVEDIR) == 0) break;
    usleep(kRemovalPauseMicros);
  }
  _exit(0);
}

// Real processes: workers, what is below them, and what has lost its parent.
#include "agent/workers/worker_speaker.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

// Forks `depth` processes, each below the one before, and tells the pid of the last, which has been
// made by `last`. All of them wait until the pipe is closed.
class Speaker : public ::testing::Test {
 protected:
  enum class Last { kChild, kOrphan, kDaemon };

  Speaker() {
    EXPECT_EQ(pipe2(hold_, O_CLOEXEC), 0);
    // Orphans become ours, as those of workers become the guardian's.
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    roster_.StartRound({.round = Round(0), .local_world_size = 2}, {});
  }
  ~Speaker() override {
    close(hold_[1]);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    close(hold_[0]);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  // A worker in a session of its own, with a process below it; the pid of that one.
  pid_t StartWorker(int local_rank, Last last) {
    int told[2];
    EXPECT_EQ(pipe2(told, O_CLOEXEC), 0);
    const pid_t worker = Fork([&] {
      setsid();
      const pid_t below = Fork([&] {
        if (last == Last::kDaemon) setsid();
        const pid_t lowest = Fork([&] { Hold(); });
        Tell(told[1], lowest);
        if (last == Last::kChild) Hold();
      });
      if (last != Last::kChild) waitpid(below, nullptr, 0);
      Tell(told[1], below);
      Hold();
    });
    close(told[1]);
    pid_t lowest = 0, below = 0;
    EXPECT_EQ(read(told[0], &lowest, sizeof lowest), static_cast<ssize_t>(sizeof lowest));
    EXPECT_EQ(read(told[0], &below, sizeof below), static_cast<ssize_t>(sizeof below));
    close(told[0]);
    roster_.Add(LocalRank(local_rank)).pid = worker;
    return lowest;
  }
  std::string Refusal(int said, pid_t pid) {
    const absl::Status status = CheckSpeaker(roster_, LocalRank(said), pid);
    EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
    return std::string(status.message());
  }

  WorkerRoster roster_;

 private:
  static pid_t Fork(const std::function<void()>& work) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    work();
    _exit(0);
  }
  static void Tell(int fd, pid_t pid) {
    if (write(fd, &pid, sizeof pid) != static_cast<ssize_t>(sizeof pid)) _exit(1);
  }
  void Hold() {
    close(hold_[1]);
    char byte;
    [[maybe_unused]] const ssize_t n = read(hold_[0], &byte, 1);
  }
  int hold_[2];
};

TEST_F(Speaker, AWorkerAndWhatIsBelowItSpeakAsThatWorkerAlone) {
  const pid_t below = StartWorker(0, Last::kChild);
  StartWorker(1, Last::kChild);
  const pid_t worker = roster_.FindByLocalRank(LocalRank(0))->pid;
  for (const pid_t pid : {worker, below}) {
    EXPECT_EQ(Refusal(0, pid), "");
    EXPECT_THAT(Refusal(1, pid), HasSubstr("says that it is of local rank 1, and is of local rank "
                                           "0"));
  }
}

TEST_F(Speaker, WhoseParentHasEndedIsKnownByItsSession) {
  const pid_t orphan = StartWorker(0, Last::kOrphan);
  StartWorker(1, Last::kChild);
  EXPECT_EQ(Refusal(0, orphan), "");
  EXPECT_THAT(Refusal(1, orphan), HasSubstr("is of local rank 0"));
}

TEST_F(Speaker, WhoIsOfNoWorkerThatIsKnownMayBeOfAny) {
  const pid_t daemon = StartWorker(0, Last::kDaemon);
  for (const int said : {0, 1}) {
    EXPECT_EQ(Refusal(said, daemon), "");
    EXPECT_EQ(Refusal(said, getpid()), "");
    EXPECT_EQ(Refusal(said, 0), "") << "of a process namespace that is not ours";
  }
}

TEST_F(Speaker, NobodySpeaksAsALocalRankThatTheNodeDoesNotHave) {
  const pid_t below = StartWorker(0, Last::kChild);
  for (const int said : {2, 7, -5, 4000000}) {
    EXPECT_THAT(Refusal(said, below), HasSubstr("this node has 2 workers, from 0")) << said;
    EXPECT_THAT(Refusal(said, 0), HasSubstr("this node has 2 workers, from 0")) << said;
  }
}

}  // namespace
}  // namespace muster::agent

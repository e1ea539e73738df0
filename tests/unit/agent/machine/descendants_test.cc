#include "agent/machine/descendants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string StatText(pid_t pid, pid_t parent, const std::string& name = "sh", char state = 'S') {
  return absl::StrCat(pid, " (", name, ") ", std::string(1, state), " ", parent,
                      " 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5001 0 0 18446744073709551615");
}

std::vector<pid_t> Pids(const std::vector<ProcessInfo>& processes) {
  std::vector<pid_t> pids;
  for (const ProcessInfo& process : processes) pids.push_back(process.pid);
  return pids;
}

// A procfs made of files: 10 -> {11 -> {13}, 12 -> {14 -> {15}}}, and a stranger.
class FakeProc : public testing::Test {
 protected:
  FakeProc() {
    std::string path = testing::TempDir() + "/proc_XXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~FakeProc() override { std::filesystem::remove_all(root_); }

  void Add(pid_t pid, pid_t parent, char state = 'S') {
    std::filesystem::create_directories(root_ + absl::StrCat("/", pid, "/task/", pid));
    Write(absl::StrCat(pid, "/stat"), StatText(pid, parent, "sh", state));
  }
  void Write(const std::string& path, const std::string& text) {
    std::ofstream(root_ + "/" + path) << text;
  }
  void AddTree() {
    Add(10, 1);
    Add(11, 10);
    Add(12, 10);
    Add(13, 11);
    Add(14, 12);
    Add(15, 14);
    Add(99, 1);
  }
  void WriteChildren(pid_t pid, const std::vector<pid_t>& children) {
    Write(absl::StrCat(pid, "/task/", pid, "/children"), absl::StrJoin(children, " ") + " ");
  }

  std::string root_;
};

TEST(ParseProcessStat, ReadsParentStateAndStartTime) {
  EXPECT_EQ(ParseProcessStat(StatText(4242, 17)),
            (ProcessInfo{.pid = 4242, .parent = 17, .state = 'S', .start_time = 5001}));
}

TEST(ParseProcessStat, IsNotMisledByAProgramNamedLikeTheRestOfTheLine) {
  EXPECT_EQ(ParseProcessStat(StatText(4242, 17, "a) R 1 2 (b)"))->parent, 17);
}

TEST(ParseProcessStat, RefusesWhatIsNoStatLine) {
  EXPECT_FALSE(ParseProcessStat(""));
  EXPECT_FALSE(ParseProcessStat("4242 (sh) S"));
  EXPECT_FALSE(ParseProcessStat(StatText(4242, 17).substr(0, 40)));
}

TEST_F(FakeProc, FindsTheWholeTreeByParents) {
  AddTree();
  EXPECT_THAT(Pids(ListDescendants(10, {}, root_)), UnorderedElementsAre(11, 12, 13, 14, 15));
}

TEST_F(FakeProc, LeavesOutTheTreesThatAreExcepted) {
  AddTree();
  EXPECT_THAT(Pids(ListDescendants(10, {12}, root_)), UnorderedElementsAre(11, 13));
}

TEST_F(FakeProc, UsesChildrenFilesOfEveryThreadWhereTheyExist) {
  AddTree();
  // What the stat files alone would say is made wrong, so that only the children files can give
  // this answer.
  Add(13, 1);
  std::filesystem::create_directories(root_ + "/10/task/16");
  WriteChildren(10, {11});
  Write("10/task/16/children", "12 ");
  WriteChildren(11, {13});
  EXPECT_THAT(Pids(ListDescendants(10, {}, root_)), UnorderedElementsAre(11, 12, 13));
}

TEST_F(FakeProc, ListsParentsBeforeTheirChildren) {
  Add(10, 1);
  Add(12, 10);
  Add(11, 12);
  EXPECT_THAT(Pids(ListDescendants(10, {}, root_)), ElementsAre(12, 11));
}

TEST_F(FakeProc, EndsOnACircleOfParents) {
  Add(10, 12);
  Add(11, 10);
  Add(12, 11);
  EXPECT_THAT(Pids(ListDescendants(10, {}, root_)), ElementsAre(11, 12));
}

TEST_F(FakeProc, KnowsResourceTrackersByTheirCommandLine) {
  const auto is_tracker = [this](const std::string& command_line) {
    Add(10, 1);
    Write("10/cmdline", command_line);
    return IsResourceTracker(10, root_);
  };
  using namespace std::string_literals;
  EXPECT_TRUE(is_tracker(
      "/usr/bin/python3\0-B\0-c\0from multiprocessing.resource_tracker import main;main(5)\0"s));
  EXPECT_TRUE(
      is_tracker("python\0-c\0from joblib.externals.loky.backend.resource_tracker import "
                 "main; main(9, False)\0"s));
  EXPECT_FALSE(is_tracker("python\0train.py\0resource_tracker import main\0"s));
  EXPECT_FALSE(is_tracker("python\0-c"s));
  EXPECT_FALSE(is_tracker(""));
  EXPECT_FALSE(IsResourceTracker(11, root_)) << "a process that has ended";
}

// Reading its command line might take as long as it is held.
TEST_F(FakeProc, AsksNothingOfAProcessThatTheKernelHolds) {
  using namespace std::string_literals;
  Add(10, 1, 'D');
  Write("10/cmdline", "python\0-c\0from multiprocessing.resource_tracker import main\0"s);
  EXPECT_FALSE(IsResourceTracker(10, root_));
  Add(10, 1, 'S');
  EXPECT_TRUE(IsResourceTracker(10, root_));
}

// A child that has a child in a session of its own; both are stopped, and the middle one ends by
// itself.
TEST(KillOwnDescendants, EndsStoppedProcessesAndOrphansOfTheirOwnSession) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      setsid();
      [[maybe_unused]] const ssize_t n = write(ends[1], "x", 1);
      raise(SIGSTOP);
      _exit(1);
    }
    _exit(0);
  }
  char ready;
  ASSERT_EQ(read(read_end.get(), &ready, 1), 1);
  EXPECT_TRUE(HasChildren());
  EXPECT_THAT(KillOwnDescendants(10'000), IsEmpty());
  EXPECT_FALSE(HasChildren());
}

TEST(SignalProcesses, SparesAProcessThatGotThePidOfTheListedOne) {
  // SIGUSR1 stays pending behind the child's mask, where it can be seen.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGUSR2);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &blocked, nullptr), 0);
  const pid_t child = fork();
  if (child == 0) {
    int signal = 0;
    sigwait(&blocked, &signal);
    _exit(signal);
  }
  const std::vector<ProcessInfo> listed = ListDescendants(getpid());
  ASSERT_THAT(Pids(listed), ElementsAre(child));
  ProcessInfo earlier = listed[0];
  earlier.start_time -= 1;
  SignalProcesses({earlier}, SIGUSR1);
  SignalProcesses(listed, SIGUSR2);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), SIGUSR2);
}

TEST_F(FakeProc, TellsProgramsThatHandleASignalFromShellsAndWrappers) {
  AddTree();
  const auto run = [&](pid_t pid, const std::string& program, const std::string& caught) {
    Write(absl::StrCat(pid, "/status"), absl::StrCat("Name:\tx\nSigCgt:\t", caught, "\n"));
    std::filesystem::remove(root_ + absl::StrCat("/", pid, "/exe"));
    std::filesystem::create_symlink(program, root_ + absl::StrCat("/", pid, "/exe"));
    return TakesSignalItself(pid, SIGTERM, root_);
  };
  const std::string sigterm = "0000000000004000", sigint = "0000000000000002";
  run(14, "/opt/ffmpeg", sigint);
  EXPECT_TRUE(run(12, "/usr/bin/python3.11", sigterm));
  EXPECT_FALSE(run(12, "/usr/bin/python3.11", sigint));
  EXPECT_FALSE(run(12, "/bin/bash", sigterm));
  EXPECT_FALSE(run(12, "/opt/nsys", sigterm)) << "it has started another program";
  EXPECT_TRUE(run(13, "/opt/trainer", sigterm) && run(11, "/opt/trainer", sigterm));
  EXPECT_FALSE(TakesSignalItself(99, SIGTERM, root_)) << "nothing is known of it";
}

TEST(HasPendingSignal, SeesWhatWaitsBehindTheMaskOfAnotherProcess) {
  sigset_t everything;
  sigfillset(&everything);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &everything, nullptr), 0);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  EXPECT_FALSE(HasPendingSignal(child, SIGTERM));
  ASSERT_EQ(kill(child, SIGTERM), 0);
  EXPECT_TRUE(HasPendingSignal(child, SIGTERM));
  EXPECT_FALSE(HasPendingSignal(child, SIGUSR1));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(HasPendingSignal(child, SIGTERM));
}

}  // namespace
}  // namespace muster::agent

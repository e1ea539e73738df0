// Real processes: every wait is for an event, with a deadline that only a fault reaches.
#include "agent/guardian/guardian.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/machine/pidfd.h"
#include "proto/base/mono_time.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kDeadline = absl::Seconds(20);

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end = UniqueFd(ends[0]);
    write_end = UniqueFd(ends[1]);
  }
  UniqueFd read_end, write_end;
};

bool IsReadable(int fd, absl::Duration timeout) {
  pollfd polled{fd, POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
}

std::string ReadLine(int fd) {
  std::string line;
  char c;
  while (IsReadable(fd, kDeadline) && read(fd, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t n;
  while (IsReadable(fd, kDeadline) && (n = read(fd, buffer, sizeof buffer)) > 0)
    text.append(buffer, n);
  return text;
}

// Opened while the process is known to exist; readable once it has ended.
UniqueFd Watch(pid_t pid) {
  UniqueFd fd = OpenPidfd(pid);
  EXPECT_TRUE(fd) << "no process " << pid;
  return fd;
}

std::string StatusLine(const std::string& status, const std::string& field) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (absl::StartsWith(line, field + ":")) return std::string(line);
  }
  return "";
}

WorkerCommand Shell(uint64_t worker_id, const std::string& script) {
  WorkerCommand command;
  command.worker_id = worker_id;
  command.argv = {"sh", "-c", script};
  command.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  return command;
}

// An agent's loop, and what its guardian told it.
class Agent {
 public:
  Agent() {
    auto handle = ForkGuardian();
    EXPECT_TRUE(handle.ok()) << handle.status();
    client = std::make_unique<GuardianClient>(
        loop, *std::move(handle),
        GuardianListener{
            .on_spawned =
                [this](uint64_t id, pid_t pid, UniqueFd pidfd, bool) {
                  pids[id] = pid;
                  pidfds[id] = std::move(pidfd);
                },
            .on_spawn_failed = [this](uint64_t id, absl::Status status) { failures[id] = status; },
            .on_exited = [this](const WorkerExit& exit) { exits[exit.worker_id] = exit; },
            .on_warm =
                [this](const WarmState& state) {
                  is_warm = state.is_ready;
                  if (!is_warm) why_not_warm.push_back(state.text);
                },
            .on_empty = [this] { ++num_empty; },
            .on_strays = [this](const std::vector<pid_t>& pids) { strays = pids; },
            .on_lost = [this](const std::string& reason) { lost.push_back(reason); }});
  }

  template <typename Predicate>
  bool RunUntil(Predicate done) {
    const MonoTime deadline = MonoNow() + kDeadline;
    while (!done()) {
      const absl::Duration left = deadline - MonoNow();
      if (left <= absl::ZeroDuration()) return false;
      loop.run_one_for(absl::ToChronoNanoseconds(left));
    }
    return true;
  }
  bool RunUntilExit(uint64_t id) {
    return RunUntil([&] { return exits.count(id) + failures.count(id) > 0; });
  }
  bool RunUntilSpawned(uint64_t id) {
    return RunUntil([&] { return pids.count(id) > 0; });
  }
  // Runs `script` to its end and returns what it printed.
  std::string OutputOf(WorkerCommand command) {
    Pipe out;
    command.stdout_fd = out.write_end.get();
    client->Spawn(command);
    out.write_end.reset();
    EXPECT_TRUE(RunUntilExit(command.worker_id));
    return ReadAll(out.read_end.get());
  }
  // Starts `script` and returns the first line that it prints.
  std::string StartAndReadLine(WorkerCommand command) {
    Pipe out;
    command.stdout_fd = out.write_end.get();
    client->Spawn(command);
    EXPECT_TRUE(RunUntilSpawned(command.worker_id));
    return ReadLine(out.read_end.get());
  }

  asio::io_context loop;
  std::unique_ptr<GuardianClient> client;
  std::map<uint64_t, pid_t> pids;
  std::map<uint64_t, UniqueFd> pidfds;
  std::map<uint64_t, absl::Status> failures;
  std::map<uint64_t, WorkerExit> exits;
  int num_empty = 0;
  bool is_warm = false;
  std::vector<std::string> why_not_warm;
  std::optional<std::vector<pid_t>> strays;
  std::vector<std::string> lost;
};

class Guardian : public testing::Test {
 protected:
  Guardian() {
    std::string path = "/tmp/guardian_XXXXXX";
    directory_ = mkdtemp(path.data());
  }
  ~Guardian() override {
    EXPECT_TRUE(agent_.client == nullptr || agent_.client->Shutdown(kDeadline));
    EXPECT_THAT(KillOwnDescendants(20'000), IsEmpty());
    std::filesystem::remove_all(directory_);
  }

  std::string WriteFile(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }

  // Worker 1, to be forked by a warm process that does `before`, says that it is ready, and does
  // `then`. Started afresh it ends with 7.
  static WorkerCommand WarmShell(const std::string& before, const std::string& then) {
    WorkerCommand command =
        Shell(1, absl::StrCat("[ -n \"$WARM\" ] || exit 7\n", before,
                              "\nprintf '\\007\\000\\000\\000ready\\000x' >&3\n", then));
    command.start = WorkerStart::kForked;
    return command;
  }
  // Returns its pid.
  pid_t StartWarm(WorkerCommand command) {
    command.worker_id = 0;
    command.start = WorkerStart::kWarm;
    command.environment.push_back("WARM=1");
    agent_.client->Spawn(command);
    EXPECT_TRUE(agent_.RunUntil([&] { return agent_.is_warm; }));
    for (const ProcessInfo& process : ListDescendants(agent_.client->pid())) {
      if (getpgid(process.pid) == process.pid) return process.pid;
    }
    ADD_FAILURE() << "there is no warm process";
    return -1;
  }

  std::string directory_;
  Agent agent_;
};

TEST_F(Guardian, StartsAWorkerWithItsArgumentsEnvironmentDirectoryAndStreams) {
  WorkerCommand command = Shell(1, "echo \"$0|$1|$RANK|$(pwd)\"; cat");
  command.argv = {"sh", "-c", command.argv[2], "name", "an argument"};
  command.environment.push_back("RANK=3");
  command.working_directory = directory_;
  Pipe in;
  command.stdin_fd = in.read_end.get();
  ASSERT_EQ(write(in.write_end.get(), "input", 5), 5);
  in.write_end.reset();
  EXPECT_EQ(agent_.OutputOf(command), "name|an argument|3|" + directory_ + "\ninput");
  EXPECT_EQ(agent_.exits[1].exit_code, 0);
  EXPECT_EQ(agent_.exits[1].signal, 0);
}

TEST_F(Guardian, ReportsHowAWorkerEnded) {
  agent_.client->Spawn(Shell(1, "exit 42"));
  agent_.client->Spawn(Shell(2, "kill -SEGV $$"));
  ASSERT_TRUE(agent_.RunUntilExit(1) && agent_.RunUntilExit(2));
  EXPECT_EQ(agent_.exits[1].exit_code, 42);
  EXPECT_EQ(agent_.exits[1].signal, 0);
  EXPECT_EQ(agent_.exits[2].signal, SIGSEGV);
}

TEST_F(Guardian, TellsOfTheStartBeforeTheEnd) {
  for (uint64_t id = 1; id <= 20; ++id) agent_.client->Spawn(Shell(id, "exit 1"));
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(agent_.RunUntil([&] { return agent_.exits.count(id) > 0; }));
    EXPECT_EQ(agent_.pids.count(id), 1u) << "worker " << id;
  }
}

TEST_F(Guardian, HandsOutAPidfdThatSeesTheEnd) {
  Pipe in;
  WorkerCommand command = Shell(1, "read line");
  command.stdin_fd = in.read_end.get();
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilSpawned(1));
  ASSERT_TRUE(agent_.pidfds[1]);
  EXPECT_FALSE(IsReadable(agent_.pidfds[1].get(), absl::ZeroDuration()));
  in.write_end.reset();
  EXPECT_TRUE(IsReadable(agent_.pidfds[1].get(), kDeadline));
}

TEST_F(Guardian, LooksTheProgramUpInTheWorkersOwnPath) {
  WriteFile("muster_probe", "#!/bin/sh\necho found\n", 0755);
  WorkerCommand command;
  command.worker_id = 1;
  command.argv = {"muster_probe"};
  command.environment = {"PATH=/absent:" + directory_};
  EXPECT_EQ(agent_.OutputOf(command), "found\n");
}

TEST_F(Guardian, SaysThatAProgramIsNotInPath) {
  WorkerCommand command = Shell(1, "");
  command.argv = {"muster_absent_program"};
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(agent_.failures[1].message(),
            "cannot start muster_absent_program: No such file or directory; it is not in PATH");
  EXPECT_THAT(agent_.pids, IsEmpty());
}

TEST_F(Guardian, SaysThatAFileMayNotBeExecuted) {
  WorkerCommand command = Shell(1, "");
  command.argv = {WriteFile("plain.sh", "#!/bin/sh\n", 0644)};
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(agent_.failures[1].message()), HasSubstr("chmod +x"));
}

TEST_F(Guardian, SaysWhatAScriptLacksInsteadOfGuessingAShell) {
  WorkerCommand command = Shell(1, "");
  command.argv = {WriteFile("no_interpreter", "echo hello\n", 0755)};
  agent_.client->Spawn(command);
  command.worker_id = 2;
  command.argv = {WriteFile("bad_interpreter", "#!/absent/python\n", 0755)};
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1) && agent_.RunUntilExit(2));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(agent_.failures[1].message()), HasSubstr("#!"));
  EXPECT_EQ(agent_.failures[2].code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(agent_.failures[2].message()),
              HasSubstr("interpreter that it names is not"));
}

TEST_F(Guardian, NamesAWorkingDirectoryThatIsNotThere) {
  WorkerCommand command = Shell(1, "");
  command.working_directory = directory_ + "/absent";
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(agent_.failures[1].message()), HasSubstr(directory_ + "/absent"));
}

TEST_F(Guardian, RefusesCommandsThatCannotBeMeantAndNotFromInsideTheCall) {
  WorkerCommand command = Shell(1, std::string("a\0b", 3));
  agent_.client->Spawn(command);
  agent_.client->Spawn(WorkerCommand{.worker_id = 2});
  EXPECT_THAT(agent_.failures, IsEmpty());
  ASSERT_TRUE(agent_.RunUntilExit(1) && agent_.RunUntilExit(2));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(agent_.failures[2].code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Guardian, BindsAWorkerToItsCpus) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  WorkerCommand command = Shell(1, "cat /proc/self/status");
  command.cpus = {cpu};
  EXPECT_EQ(StatusLine(agent_.OutputOf(command), "Cpus_allowed_list"),
            absl::StrCat("Cpus_allowed_list:\t", cpu));
}

TEST_F(Guardian, NamesCpusThatMayNotBeUsed) {
  WorkerCommand command = Shell(1, "exit 0");
  command.cpus = {1000};
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.failures[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(agent_.failures[1].message()), HasSubstr("CPUs 1000"));
}

TEST_F(Guardian, GivesEveryWorkerASessionAndAGroupOfItsOwn) {
  Pipe in;
  WorkerCommand command = Shell(1, "read line");
  command.stdin_fd = in.read_end.get();
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilSpawned(1));
  const pid_t pid = agent_.pids[1];
  EXPECT_EQ(getpgid(pid), pid);
  EXPECT_EQ(getsid(pid), pid);
  EXPECT_EQ(getsid(agent_.client->pid()), agent_.client->pid());
}

TEST_F(Guardian, GivesWorkersNoDescriptorButTheirStreams) {
  const UniqueFd inheritable(open("/dev/null", O_RDONLY));
  const std::string listing = agent_.OutputOf(Shell(1, "ls /proc/self/fd"));
  EXPECT_EQ(listing, "0\n1\n2\n3\n");  // 3 is the directory that ls reads
}

TEST_F(Guardian, StartsManyWorkersWhoseEnvironmentsDoNotFitIntoTheSocket) {
  WorkerCommand command = Shell(0, "test ${#LARGE} = 100000");
  command.environment.push_back("LARGE=" + std::string(100'000, 'x'));
  for (uint64_t id = 1; id <= 40; ++id) {
    command.worker_id = id;
    Pipe out;
    command.stdout_fd = out.write_end.get();
    agent_.client->Spawn(command);
  }
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.exits.size() == 40; }));
  for (const auto& [id, exit] : agent_.exits) EXPECT_EQ(exit.exit_code, 0) << "worker " << id;
}

TEST_F(Guardian, SignalsTheWholeGroupOfAWorker) {
  const std::string child = agent_.StartAndReadLine(Shell(1, "sleep 1000 & echo $!; wait"));
  const UniqueFd grandchild = Watch(std::stoi(child));
  agent_.client->SignalGroup(1, SIGTERM);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].signal, SIGTERM);
  EXPECT_TRUE(IsReadable(grandchild.get(), kDeadline));
}

// A rank of Python with one process that loads its data. It ends by `at_sigterm`.
WorkerCommand LoadingRank(const std::string& at_sigterm) {
  WorkerCommand command = Shell(1, "");
  command.argv = {"python3", "-uc",
                  absl::StrCat("import os, signal, sys, time\n"
                               "to_loader, from_rank = os.pipe()[::-1]\n"
                               "from_loader, to_rank = os.pipe()\n"
                               "loader = os.fork()\n"
                               "if loader == 0:\n"
                               "    os.close(to_loader)\n"
                               "    while os.read(from_rank, 1): os.write(to_rank, b'x')\n"
                               "    signal.pause()\n"
                               "os.close(to_rank)\n"
                               "num_signals = 0\n"
                               "def loads():\n"
                               "    os.write(to_loader, b'?')\n"
                               "    return os.read(from_loader, 1) == b'x'\n"
                               "def stop(*_):\n"
                               "    global num_signals\n"
                               "    num_signals += 1\n    ",
                               at_sigterm,
                               "\nsignal.signal(signal.SIGTERM, stop)\n"
                               "print(loader)\n"
                               "while True: time.sleep(0.05)\n")};
  return command;
}

TEST_F(Guardian, SignalsAWorkerThatHandlesItAloneAndTheOthersOnceItHasEnded) {
  const UniqueFd loader =
      Watch(std::stoi(agent_.StartAndReadLine(LoadingRank("sys.exit(3 if loads() else 4)"))));
  agent_.client->SignalGroup(1, SIGTERM, absl::Hours(1));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 3);
  EXPECT_TRUE(IsReadable(loader.get(), kDeadline));
}

TEST_F(Guardian, SignalsTheOthersInTheirTimeAndTheWorkerNoSecondTime) {
  agent_.StartAndReadLine(
      LoadingRank("sys.exit(200 + num_signals +"
                  " 10 * os.waitstatus_to_exitcode(os.waitpid(loader, 0)[1]))"));
  agent_.client->SignalGroup(1, SIGTERM, absl::Milliseconds(10));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 200 - 10 * SIGTERM + 1);
}

TEST_F(Guardian, LeavesTheOthersAloneWhereAskedTo) {
  const std::string loader = agent_.StartAndReadLine(LoadingRank("sys.exit(3 if loads() else 4)"));
  agent_.client->SignalGroup(1, SIGTERM, absl::InfiniteDuration());
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 3);
  agent_.client->ListStrays();
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.strays.has_value(); }));
  EXPECT_THAT(*agent_.strays, ElementsAre(std::stoi(loader)));
}

TEST_F(Guardian, DoesNotLoseASignalThatFollowsTheStartAtOnce) {
  for (uint64_t id = 1; id <= 20; ++id) {
    agent_.client->Spawn(Shell(id, "exec sleep 1000"));
    agent_.client->SignalGroup(id, SIGTERM);
  }
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.exits.size() == 20; }));
  for (const auto& [id, exit] : agent_.exits) EXPECT_EQ(exit.signal, SIGTERM) << "worker " << id;
}

// The warm process takes its time, and ends, so that the worker is started afresh.
TEST_F(Guardian, DoesNotLoseASignalForAWorkerThatIsBeingForked) {
  WorkerCommand command = Shell(0,
                                "[ -n \"$WARM\" ] || exec sleep 1000\n"
                                "printf '\\007\\000\\000\\000ready\\000x' >&3\n"
                                "dd bs=1 count=1 <&3 >/dev/null 2>&1\n"
                                "sleep 0.2\n");
  WorkerCommand warm = command;
  warm.start = WorkerStart::kWarm;
  warm.environment.push_back("WARM=1");
  agent_.client->Spawn(warm);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.is_warm; }));
  command.worker_id = 1;
  command.start = WorkerStart::kForked;
  agent_.client->Spawn(command);
  agent_.client->SignalGroup(1, SIGTERM);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].signal, SIGTERM);
}

// The warm process has not got to closing its end of the socket over which that worker spoke.
TEST_F(Guardian, SaysOfAForkedWorkerThatEndsAtOnceThatItRan) {
  WorkerCommand command = Shell(0, "");
  command.argv = {"python3", "-c", R"(import os, socket, time
control = socket.socket(fileno=3)
control.sendall(b"\7\0\0\0ready\0x")
guardian = os.getppid()
_, descriptors, _, _ = socket.recv_fds(control, 4096, 8)
if os.fork() == 0:
    if os.fork() != 0:
        os._exit(0)
    while os.getppid() != guardian:
        time.sleep(0.001)
    result = socket.socket(fileno=descriptors[0])
    result.sendall(b"!")
    result.recv(1)
    os._exit(7)
time.sleep(1000)
)"};
  WorkerCommand warm = command;
  warm.start = WorkerStart::kWarm;
  agent_.client->Spawn(warm);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.is_warm; }));
  command.worker_id = 1;
  command.start = WorkerStart::kForked;
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 7);
  EXPECT_EQ(agent_.pids.count(1), 1u);
}

TEST_F(Guardian, StartsAWorkerAfreshAndSaysWhyWhereTheWarmProcessHangs) {
  const WorkerCommand command = WarmShell("(sleep 1000 &)", "exec sleep 1000");
  const UniqueFd warm = Watch(StartWarm(command));
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 7);
  EXPECT_THAT(agent_.why_not_warm, ElementsAre(HasSubstr("has not handed over a worker within")));
  EXPECT_TRUE(IsReadable(warm.get(), kDeadline)) << "it is ended";
}

TEST_F(Guardian, SaysWhyAlsoWhereAProcessThatIsToBeTheWorkerEnds) {
  const WorkerCommand command = WarmShell("", R"(exec python3 -c 'import os, socket, time
control = socket.socket(fileno=3)
for fd in socket.recv_fds(control, 4096, 8)[1]: os.close(fd)
time.sleep(1000)')");
  StartWarm(command);
  agent_.client->Spawn(command);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  EXPECT_EQ(agent_.exits[1].exit_code, 7);
  EXPECT_THAT(agent_.why_not_warm, ElementsAre(HasSubstr("has forked has ended")));
}

// What waits to be a worker loses its parent where somebody kills that.
TEST_F(Guardian, NeitherNamesNorAwaitsWhatTheWarmProcessHasForked) {
  StartWarm(WarmShell("(sleep 1000 &)", "sleep 1000 & wait"));
  agent_.client->ListStrays();
  agent_.client->Sweep(0);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
  EXPECT_THAT(*agent_.strays, IsEmpty());
}

TEST_F(Guardian, EndsWhatAWarmProcessThatIsKilledHadForked) {
  const pid_t warm = StartWarm(WarmShell("(sleep 1000 &)", "exec sleep 1000"));
  std::vector<ProcessInfo> forked = ListDescendants(agent_.client->pid(), {warm});
  ASSERT_EQ(forked.size(), 1u);
  const UniqueFd watched = Watch(forked.front().pid);
  ASSERT_EQ(kill(warm, SIGKILL), 0);
  EXPECT_TRUE(IsReadable(watched.get(), kDeadline));
}

TEST_F(Guardian, ListsWhatWorkersHaveLeft) {
  const pid_t left = std::stoi(
      agent_.StartAndReadLine(Shell(1, "sleep 1000 & echo $!; read line < /dev/null; exit 0")));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  agent_.client->ListStrays();
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.strays.has_value(); }));
  EXPECT_THAT(*agent_.strays, ElementsAre(left));
}

TEST_F(Guardian, IgnoresSignalsForWorkersThatHaveEnded) {
  agent_.client->Spawn(Shell(1, "exit 0"));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  agent_.client->SignalGroup(1, SIGKILL);
  agent_.client->SignalGroup(77, SIGKILL);
  EXPECT_EQ(agent_.OutputOf(Shell(2, "echo still here")), "still here\n");
}

TEST_F(Guardian, OutlivesTheSignalsOfTerminalsAndSchedulers) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGTSTP}) {
    ASSERT_EQ(kill(agent_.client->pid(), signal), 0);
  }
  EXPECT_EQ(agent_.OutputOf(Shell(1, "echo still here")), "still here\n");
}

TEST_F(Guardian, AnswersASweepAtOnceWhenNothingIsLeft) {
  agent_.client->Sweep(SIGTERM);
  EXPECT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
}

TEST_F(Guardian, SweepsOrphansInSessionsOfTheirOwnWithTheirChildren) {
  const std::string orphan = agent_.StartAndReadLine(
      Shell(1, "setsid sh -c 'sleep 1000 & echo $$; wait' & read line < /dev/null; exit 0"));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  const UniqueFd watched = Watch(std::stoi(orphan));
  agent_.client->Sweep(SIGTERM);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
  EXPECT_TRUE(IsReadable(watched.get(), absl::ZeroDuration()));
  EXPECT_THAT(ListDescendants(agent_.client->pid()), IsEmpty());
}

TEST_F(Guardian, SparesTheTreesOfLiveWorkersWhenItSweeps) {
  const UniqueFd child =
      Watch(std::stoi(agent_.StartAndReadLine(Shell(1, "setsid sleep 1000 & echo $!; wait"))));
  const UniqueFd orphan =
      Watch(std::stoi(agent_.StartAndReadLine(Shell(2, "setsid sleep 1000 & echo $!"))));
  ASSERT_TRUE(agent_.RunUntilExit(2));
  agent_.client->Sweep(SIGKILL);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
  EXPECT_TRUE(IsReadable(orphan.get(), absl::ZeroDuration()));
  EXPECT_FALSE(IsReadable(child.get(), absl::ZeroDuration()));
  EXPECT_EQ(agent_.exits.count(1), 0u);
}

TEST_F(Guardian, AnswersASweepOnlyWhenThoseThatIgnoreTheSignalAreGoneToo) {
  agent_.StartAndReadLine(Shell(
      1, "setsid sh -c 'trap \"\" TERM; echo ready; exec sleep 1000' & read line < /dev/null"));
  ASSERT_TRUE(agent_.RunUntilExit(1));
  agent_.client->Sweep(SIGTERM);
  EXPECT_EQ(agent_.OutputOf(Shell(2, "echo barrier")), "barrier\n");
  EXPECT_EQ(agent_.num_empty, 0);
  agent_.client->Sweep(SIGKILL);
  EXPECT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
}

// One that does as Python's resource tracker: is in the worker's group, takes no SIGTERM, and
// removes what the worker has left once the worker is gone.
class GuardianOfTrackers : public Guardian {
 protected:
  GuardianOfTrackers() {
    const std::string fifo = directory_ + "/fifo";
    // It is ready when both have opened the pipe: without a writer it would wait there for ever.
    const std::string tracker =
        absl::StrCat("exec 4< ", fifo, "; echo ready; read line <&4; : > ", directory_,
                     "/has_removed; : resource_tracker import main");
    started_ = agent_.StartAndReadLine(
        Shell(1, absl::StrCat("mkfifo ", fifo, "; trap '' TERM; sh -c '", tracker, "' & exec 3> ",
                              fifo, "; exec sleep 1000")));
  }
  bool HasRemoved() const { return std::filesystem::exists(directory_ + "/has_removed"); }
  std::string started_;
};

TEST_F(GuardianOfTrackers, SparesThemWhenItKillsAGroupAndWhenItSweeps) {
  ASSERT_EQ(started_, "ready");
  agent_.client->SignalGroup(1, SIGKILL);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  agent_.client->Sweep(SIGTERM);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; }));
  ASSERT_TRUE(agent_.client->Shutdown(kDeadline));
  EXPECT_TRUE(HasRemoved());
}

TEST_F(GuardianOfTrackers, SparesThemAtTheEndOfTheAgent) {
  ASSERT_EQ(started_, "ready");
  ASSERT_TRUE(agent_.client->Shutdown(kDeadline));
  EXPECT_TRUE(HasRemoved());
}

TEST_F(Guardian, TakesNoWorkerForATracker) {
  agent_.StartAndReadLine(
      Shell(1, "echo ready; while :; do sleep 1; done; : resource_tracker import main"));
  agent_.client->SignalGroup(1, SIGKILL);
  EXPECT_TRUE(agent_.RunUntilExit(1));
}

TEST_F(Guardian, EndsATrackerThatDoesNotEndByItself) {
  const UniqueFd tracker = Watch(std::stoi(agent_.StartAndReadLine(Shell(
      1, "sh -c 'echo $$; kill -STOP $$; : resource_tracker import main' & exec sleep 1000"))));
  agent_.client->SignalGroup(1, SIGKILL);
  ASSERT_TRUE(agent_.RunUntilExit(1));
  agent_.client->Sweep(SIGKILL);
  ASSERT_TRUE(agent_.RunUntil([&] { return agent_.num_empty == 1; })) << "it is not waited for";
  EXPECT_TRUE(IsReadable(tracker.get(), kDeadline));
}

TEST_F(Guardian, RemovesWhatWasRegisteredWhenTheAgentGoes) {
  const std::string file = WriteFile("board", "x", 0600);
  std::filesystem::create_directories(directory_ + "/sockets/inner");
  WriteFile("sockets/inner/agent.sock", "x", 0600);
  agent_.client->RemoveAtEnd(file);
  agent_.client->RemoveAtEnd(directory_ + "/sockets");
  ASSERT_TRUE(agent_.client->Shutdown(kDeadline));
  EXPECT_THAT(std::filesystem::is_empty(directory_), true);
}

TEST_F(Guardian, EndsWhatIsLeftInAnOrderlyShutdown) {
  const UniqueFd worker =
      Watch(std::stoi(agent_.StartAndReadLine(Shell(1, "echo $$; exec sleep 1000"))));
  ASSERT_TRUE(agent_.client->Shutdown(kDeadline));
  EXPECT_TRUE(IsReadable(worker.get(), absl::ZeroDuration()));
  EXPECT_THAT(agent_.lost, IsEmpty());
}

TEST_F(Guardian, IsReportedLostOnceAndItsWorkersDieWithIt) {
  const UniqueFd worker =
      Watch(std::stoi(agent_.StartAndReadLine(Shell(1, "echo $$; exec sleep 1000"))));
  const pid_t guardian = agent_.client->pid();
  ASSERT_EQ(kill(guardian, SIGKILL), 0);
  ASSERT_TRUE(agent_.RunUntil([&] { return !agent_.lost.empty(); }));
  agent_.client->Spawn(Shell(2, "exit 0"));
  agent_.client->Sweep(SIGKILL);
  agent_.loop.poll();
  EXPECT_THAT(agent_.lost, ElementsAre(absl::StrCat("guardian (pid ", guardian,
                                                    ") is gone; its workers died with it")));
  EXPECT_TRUE(IsReadable(worker.get(), kDeadline));
}

TEST_F(Guardian, LeavesToTheAgentWhatItCannotEndAnyMore) {
  const UniqueFd orphan =
      Watch(std::stoi(agent_.StartAndReadLine(Shell(1, "setsid sleep 1000 & echo $!; wait"))));
  ASSERT_EQ(kill(agent_.client->pid(), SIGKILL), 0);
  ASSERT_TRUE(agent_.RunUntil([&] { return !agent_.lost.empty(); }));
  EXPECT_THAT(KillOwnDescendants(20'000), IsEmpty());
  EXPECT_TRUE(IsReadable(orphan.get(), absl::ZeroDuration()));
}

TEST_F(Guardian, MayBeDroppedFromInsideACallback) {
  asio::io_context loop;
  auto handle = ForkGuardian();
  ASSERT_TRUE(handle.ok());
  std::unique_ptr<GuardianClient> client;
  bool dropped = false;
  client = std::make_unique<GuardianClient>(loop, *std::move(handle),
                                            GuardianListener{.on_lost = [&](const std::string&) {
                                              client.reset();
                                              dropped = true;
                                            }});
  ASSERT_EQ(kill(client->pid(), SIGKILL), 0);
  loop.run_for(absl::ToChronoSeconds(kDeadline));
  EXPECT_TRUE(dropped);
}

// Own ForkGuardian: the signals are arranged before it.
TEST(GuardianSignals, AreNeitherBlockedNorIgnoredInWorkersWhateverMusterGot) {
  signal(SIGHUP, SIG_IGN);
  signal(SIGCHLD, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &blocked, nullptr), 0);
  Agent agent;
  EXPECT_EQ(signal(SIGCHLD, SIG_DFL), SIG_DFL) << "the agent itself must not ignore its children";
  WorkerCommand command = Shell(1, "");
  command.argv = {"cat", "/proc/self/status"};
  const std::string status = agent.OutputOf(command);
  EXPECT_THAT(StatusLine(status, "SigBlk"), EndsWith("0000000000000000"));
  EXPECT_THAT(StatusLine(status, "SigIgn"), EndsWith("0000000000000000"));
  EXPECT_TRUE(agent.client->Shutdown(kDeadline));
}

// Each of 4 workers: itself, one that is stopped, two in sessions of their own, and one below an
// orphan.
constexpr char kFamily[] =
    "sh -c 'kill -STOP $$' & setsid sleep 1000 & setsid sh -c 'sleep 1000 & wait' & echo ready; "
    "wait";

[[noreturn]] void RunAgentUntilKilled(int stdout_fd, const std::string& to_remove) {
  alarm(60);
  Agent agent;
  agent.client->RemoveAtEnd(to_remove);
  for (uint64_t id = 1; id <= 4; ++id) {
    WorkerCommand command = Shell(id, kFamily);
    command.stdout_fd = stdout_fd;
    agent.client->Spawn(command);
  }
  agent.loop.run();
  _exit(1);
}

TEST(GuardianOfAKilledAgent, EndsEveryDescendantAndRemovesWhatWasRegistered) {
  std::string socket_directory = "/tmp/guardian_XXXXXX";
  ASSERT_NE(mkdtemp(socket_directory.data()), nullptr);
  Pipe out;
  const pid_t agent = fork();
  if (agent == 0) RunAgentUntilKilled(out.write_end.get(), socket_directory);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(ReadLine(out.read_end.get()), "ready");
  std::vector<ProcessInfo> family;
  const MonoTime deadline = MonoNow() + kDeadline;
  // The guardian, and 4 times sh, sh, sleep, sh, sleep.
  while (family.size() < 21 && MonoNow() < deadline) family = ListDescendants(agent);
  ASSERT_EQ(family.size(), 21u);
  std::vector<UniqueFd> watched;
  for (const ProcessInfo& process : family) watched.push_back(Watch(process.pid));

  const MonoTime killed = MonoNow();
  ASSERT_EQ(kill(agent, SIGKILL), 0);
  for (const UniqueFd& fd : watched) EXPECT_TRUE(IsReadable(fd.get(), kDeadline));
  RecordProperty("all_gone_after_us",
                 static_cast<int>(absl::ToInt64Microseconds(MonoNow() - killed)));
  EXPECT_FALSE(std::filesystem::exists(socket_directory));
  EXPECT_EQ(waitpid(agent, nullptr, 0), agent);
}

}  // namespace
}  // namespace muster::agent

#include "agent/process/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "agent/process/framed_socket.h"
#include "agent/process/guardian_wire.h"
#include "agent/process/job_group.h"
#include "agent/process/runtime_directory.h"
#include "proto/io/descriptors.h"

namespace muster::agent {
namespace {

// Nested subreapers hide the end of a process from us, so a sweep looks again without being told.
constexpr int kSweepLookAgainMs = 20;
constexpr int kWaitLookAgainMs = 200;  // where nothing was signalled, they may take long
// Something that SIGKILL does not end is left behind after this; the parent-death signal stays with
// it.
constexpr int kKillTimeoutMs = 10'000;
// An agent that does not read gets no more requests served.
constexpr size_t kUnreadRepliesMax = size_t{1} << 20;

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

class Guardian {
 public:
  // Workers get the limit `open_files`, whatever the guardian's own is.
  Guardian(UniqueFd socket, UniqueFd group, UniqueFd child_signals, const rlimit& open_files)
      : socket_(std::move(socket)),
        group_(std::move(group)),
        child_signals_(std::move(child_signals)),
        open_files_(open_files),
        reader_(socket_.get()),
        writer_(socket_.get()) {}

  // Returns when the agent is gone and everything of its has been ended and removed.
  //
  // The order within a turn: requests before deaths, so that a signal reaches its group while the
  // group's leader is not reaped yet and its number cannot be another's; results of exec before
  // exits, so that the agent hears of a start before its end; a sweep is judged on what is left
  // after reaping. Nothing in a turn waits: the agent is served while workers start and die.
  void Run() {
    while (!agent_gone_) {
      AwaitSomething();
      ReadRequests();
      ReadExecResults();
      Reap();
      AnswerSweep();
      if (!writer_.Flush().ok()) agent_gone_ = true;
    }
    KillOwnDescendants(kKillTimeoutMs);
    for (const std::string& path : remove_at_end_) RemoveOwnedPath(path);
  }

 private:
  struct Worker {
    uint64_t worker_id = 0;
    UniqueFd pidfd;        // until it has been handed out
    UniqueFd exec_result;  // until it is known
  };
  using Workers = absl::btree_map<pid_t, Worker>;

  void AwaitSomething() {
    short events = writer_.queued_bytes() < kUnreadRepliesMax ? POLLIN : 0;
    if (!writer_.empty()) events |= POLLOUT;
    std::vector<pollfd> polled = {{socket_.get(), events, 0}, {child_signals_.get(), POLLIN, 0}};
    for (const auto& [pid, worker] : workers_) {
      if (worker.exec_result) polled.push_back({worker.exec_result.get(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), SweepLookAgainMs());
    signalfd_siginfo drained[8];
    while (::read(child_signals_.get(), drained, sizeof drained) > 0) {
    }
  }

  int SweepLookAgainMs() const {
    if (!sweep_signal_) return -1;
    return *sweep_signal_ == 0 ? kWaitLookAgainMs : kSweepLookAgainMs;
  }

  void ReadRequests() {
    while (!agent_gone_ && writer_.queued_bytes() < kUnreadRepliesMax) {
      auto frame = reader_.Read();
      if (frame.ok() && !frame->has_value()) return;
      if (!frame.ok()) {
        agent_gone_ = true;
        return;
      }
      const auto request = wire::DecodeRequest(**frame);
      if (!request.ok()) {
        agent_gone_ = true;
        return;
      }
      Serve(*request, (*frame)->descriptors_lost);
    }
  }

  void Serve(const wire::Request& request, bool descriptors_lost) {
    std::visit(Overloaded{[&](const WorkerCommand& command) { Spawn(command, descriptors_lost); },
                          [&](const wire::SignalGroup& r) { SignalGroup(r.worker_id, r.signal); },
                          [&](const wire::Sweep& r) { BeginSweep(r.signal); },
                          [&](const wire::RemoveAtEnd& r) { remove_at_end_.push_back(r.path); }},
               request);
  }

  void Spawn(const WorkerCommand& command, bool descriptors_lost) {
    if (descriptors_lost) {
      Say(wire::SpawnFailed{command.worker_id, EMFILE, "recvmsg"});
      return;
    }
    auto result = StartWorker(command, open_files_, group_.get());
    if (const StartError* error = std::get_if<StartError>(&result)) {
      Say(wire::SpawnFailed{command.worker_id, error->error_number, error->step});
      return;
    }
    auto& started = std::get<StartedWorker>(result);
    workers_[started.pid] = {command.worker_id, std::move(started.pidfd),
                             std::move(started.exec_result)};
  }

  void ReadExecResults() {
    for (auto it = workers_.begin(); it != workers_.end();) it = ReadExecResult(it);
  }

  // Tells the agent whether the program runs, once that is known: the pipe closes with the exec, or
  // carries the errno of what failed. A worker that never ran is
  // forgotten; Reap() takes what is left of it. Returns the next worker.
  Workers::iterator ReadExecResult(Workers::iterator it) {
    auto& [pid, worker] = *it;
    if (!worker.exec_result) return std::next(it);
    const auto result = agent::ReadExecResult(worker.exec_result.get());
    if (std::holds_alternative<ExecPending>(result)) return std::next(it);
    worker.exec_result.reset();
    if (const StartError* error = std::get_if<StartError>(&result)) {
      Say(wire::SpawnFailed{worker.worker_id, error->error_number, error->step});
      return workers_.erase(it);
    }
    std::vector<UniqueFd> descriptors;
    if (worker.pidfd) descriptors.push_back(std::move(worker.pidfd));
    Say(wire::Spawned{worker.worker_id, pid}, std::move(descriptors));
    return std::next(it);
  }

  void Reap() {
    int status;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      // Dead, so its exec result is complete; it goes out before the exit.
      if (const auto it = workers_.find(pid); it != workers_.end()) ReadExecResult(it);
      const auto it = workers_.find(pid);
      if (it == workers_.end()) continue;
      WorkerExit exit{it->second.worker_id};
      if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
      exit.has_core = WIFSIGNALED(status) && WCOREDUMP(status);
      if (WIFEXITED(status)) exit.exit_code = WEXITSTATUS(status);
      workers_.erase(it);
      Say(exit);
    }
  }

  void SignalGroup(uint64_t worker_id, int signal) {
    for (const auto& [pid, worker] : workers_) {
      if (worker.worker_id != worker_id) continue;
      // A child that has not got to setsid() yet has no group; the signal waits for it behind its
      // mask.
      if (::kill(-pid, signal) != 0 && errno == ESRCH) ::kill(pid, signal);
      return;
    }
  }

  void BeginSweep(int signal) {
    Reap();
    sweep_signal_ = signal;
    SignalProcesses(ListStrays(), signal);
  }

  void AnswerSweep() {
    if (!sweep_signal_) return;
    const std::vector<ProcessInfo> strays = ListStrays();
    if (*sweep_signal_ == SIGKILL) SignalProcesses(strays, SIGKILL);
    // One look at /proc can miss a process that changes its parent meanwhile, so emptiness is
    // believed after a second; without workers the kernel knows it exactly.
    if (!strays.empty()) return;
    if (workers_.empty() ? HasChildren() : !ListStrays().empty()) return;
    sweep_signal_.reset();
    Say(wire::Empty{});
  }

  std::vector<ProcessInfo> ListStrays() const {
    std::vector<pid_t> live;
    for (const auto& [pid, worker] : workers_) live.push_back(pid);
    return ListDescendants(::getpid(), live);
  }

  void Say(const wire::Reply& reply, std::vector<UniqueFd> descriptors = {}) {
    writer_.Push(wire::Encode(reply), std::move(descriptors));
  }

  const UniqueFd socket_;
  const UniqueFd group_;  // of JobGroup; empty: there is none
  const UniqueFd child_signals_;
  const rlimit open_files_;
  FrameReader reader_;
  FrameWriter writer_;
  Workers workers_;  // not reaped yet
  std::optional<int> sweep_signal_;
  std::vector<std::string> remove_at_end_;
  bool agent_gone_ = false;
};

absl::Status FromErrno(absl::string_view what) {
  const int error = errno;
  const char* hint = error == EAGAIN   ? "; see the limits on processes (ulimit -u, pids.max)"
                     : error == EMFILE ? "; see the limit on open files (ulimit -n)"
                                       : "";
  return absl::InternalError(
      absl::StrCat("cannot start the guardian process: ", what, ": ", std::strerror(error), hint));
}

// Every signal is blocked: the guardian ends when its agent does, not when the terminal or a
// scheduler signals the job.
[[noreturn]] void BecomeGuardian(UniqueFd socket, UniqueFd group) noexcept {
  ::setsid();
  ::prctl(PR_SET_NAME, "muster-guardian");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  UniqueFd own(::fcntl(socket.release(), F_DUPFD_CLOEXEC, 3));
  // Above the first, so that what is to be closed lies around the two.
  if (group) group = UniqueFd(::fcntl(group.release(), F_DUPFD_CLOEXEC, own.get() + 1));
  int last = own.get();
  if (last > 3) ::close_range(3, last - 1, 0);
  if (group) {
    if (group.get() > last + 1) ::close_range(last + 1, group.get() - 1, 0);
    last = group.get();
  }
  ::close_range(last + 1, ~0U, 0);
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  UniqueFd child_signals(::signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!own || !child_signals) ::_exit(1);
  // Hundreds of workers that start at once are two descriptors each here, until the agent has taken
  // theirs; programs that use select() must not be given a higher limit than they were started
  // with.
  rlimit open_files{};
  ::getrlimit(RLIMIT_NOFILE, &open_files);
  RaiseDescriptorLimit();
  Guardian(std::move(own), std::move(group), std::move(child_signals), open_files).Run();
  ::_exit(0);
}

}  // namespace

absl::StatusOr<GuardianHandle> ForkGuardian() {
  OpenStandardStreams();
  ::signal(SIGCHLD, SIG_DFL);
  // First: it must not become ours once we are a subreaper.
  std::optional<JobGroup> group = MakeJobGroup();
  LastWatch last_watch;
  if (group && !last_watch.Start(*group)) {
    RemoveJobGroup(*group);
    group.reset();
  }
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return FromErrno("prctl");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return FromErrno("socketpair");
  UniqueFd ours(ends[0]), its(ends[1]);
  sigset_t everything, before;
  sigfillset(&everything);
  ::sigprocmask(SIG_BLOCK, &everything, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ours.reset();
    BecomeGuardian(std::move(its), group ? std::move(group->procs) : UniqueFd());
  }
  const int fork_error = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = fork_error;
  if (pid < 0) return FromErrno("fork");
  if (group) last_watch.TellGuardian(pid);
  return GuardianHandle{pid, std::move(ours)};
}

}  // namespace muster::agent

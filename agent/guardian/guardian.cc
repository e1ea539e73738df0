#include "agent/guardian/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "agent/guardian/framed_socket.h"
#include "agent/guardian/guardian_wire.h"
#include "agent/guardian/job_group.h"
#include "agent/guardian/warm_parent.h"
#include "agent/machine/pidfd.h"
#include "agent/process/runtime_directory.h"
#include "proto/io/descriptors.h"

namespace muster::agent {
namespace {

using wire::Overloaded;

// Nested subreapers hide the end of a process from us, so a sweep looks again without being told.
constexpr int kSweepLookAgainMs = 20;
constexpr int kWaitLookAgainMs = 200;  // where nothing was signalled, they may take long
// Something that SIGKILL does not end is left behind after this; the parent-death signal stays with
// it.
constexpr int kKillTimeoutMs = 10'000;
// The longest time from the end of the socket to that of the agent's process.
constexpr int kAgentEndTimeoutMs = 1000;
// An agent that does not read gets no more requests served.
constexpr size_t kUnreadRepliesMax = size_t{1} << 20;

class Guardian {
 public:
  // Workers get the limit `open_files`, whatever the guardian's own is.
  Guardian(UniqueFd socket, UniqueFd group, UniqueFd child_signals, const rlimit& open_files)
      : socket_(std::move(socket)),
        group_(std::move(group)),
        agent_(OpenPidfd(::getppid())),
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
      ServeWarm();
      ReadExecResults();
      Reap();
      SendLaterSignals();
      AnswerSweep();
      EndTrackers();
      if (!writer_.Flush().ok()) agent_gone_ = true;
    }
    const bool are_all_gone = KillOwnDescendants(kKillTimeoutMs, TrackersUntil()).empty();
    for (const std::string& path : remove_at_end_) RemoveOwnedPath(path);
    if (are_all_gone && !notice_.empty() && HasAgentEnded()) HandOverNotice();
  }

 private:
  // What the others of a group will get, whose leader has got it.
  struct LaterSignal {
    int signal = 0;
    MonoTime at;
  };
  struct Worker {
    uint64_t worker_id = 0;
    UniqueFd pidfd;        // until it has been handed out
    UniqueFd exec_result;  // until it is known
    bool is_forked = false;
    std::optional<LaterSignal> later;
  };
  using Workers = absl::btree_map<pid_t, Worker>;

  void AwaitSomething() {
    short events = writer_.queued_bytes() < kUnreadRepliesMax ? POLLIN : 0;
    if (!writer_.empty()) events |= POLLOUT;
    std::vector<pollfd> polled = {{socket_.get(), events, 0}, {child_signals_.get(), POLLIN, 0}};
    for (const auto& [pid, worker] : workers_) {
      if (worker.exec_result) polled.push_back({worker.exec_result.get(), POLLIN, 0});
    }
    if (warm_) warm_->AddPolled(polled);
    ::poll(polled.data(), polled.size(), LookAgainMs());
    signalfd_siginfo drained[8];
    while (::read(child_signals_.get(), drained, sizeof drained) > 0) {
    }
  }

  int LookAgainMs() const {
    if (sweep_signal_) return *sweep_signal_ == 0 ? kWaitLookAgainMs : kSweepLookAgainMs;
    MonoTime next = Min(warm_ ? warm_->NextDeadline() : MonoTime::InfiniteFuture(),
                        trackers_until_.value_or(MonoTime::InfiniteFuture()));
    for (const auto& [pid, worker] : workers_) {
      if (worker.later) next = Min(next, worker.later->at);
    }
    if (next.is_infinite()) return -1;
    const int64_t left_ms = absl::ToInt64Milliseconds(next - MonoNow()) + 1;
    return static_cast<int>(std::clamp<int64_t>(left_ms, 0, 1000));
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
                          [&](const wire::SignalGroup& r) { SignalGroup(r); },
                          [&](const wire::Sweep& r) { BeginSweep(r.signal); },
                          [&](const wire::RemoveAtEnd& r) { remove_at_end_.push_back(r.path); },
                          [&](const wire::LeaveNotice& r) { notice_ = r.notice; },
                          [&](const wire::ListStrays&) { SayStrays(); }},
               request);
  }

  void Spawn(const WorkerCommand& command, bool descriptors_lost) {
    if (descriptors_lost) {
      Say(wire::SpawnFailed{command.worker_id, EMFILE, "recvmsg"});
      return;
    }
    if (command.start == WorkerStart::kWarm) return StartWarm(command);
    if (command.start == WorkerStart::kForked && warm_ && warm_->CanFork(command)) {
      return warm_->Fork(command);
    }
    StartAfresh(command);
  }

  void StartAfresh(const WorkerCommand& command) {
    auto result = StartWorker(command, open_files_, group_.get());
    if (const StartError* error = std::get_if<StartError>(&result)) {
      early_signals_.erase(command.worker_id);
      Say(wire::SpawnFailed{command.worker_id, error->error_number, error->step});
      return;
    }
    Add(command.worker_id, std::get<StartedWorker>(std::move(result)), false);
  }

  void Add(uint64_t worker_id, StartedWorker started, bool is_forked) {
    workers_[started.pid] = {worker_id, std::move(started.pidfd), std::move(started.exec_result),
                             is_forked, std::nullopt};
    const auto early = early_signals_.extract(worker_id);
    if (early.empty()) return;
    for (const wire::SignalGroup& request : early.mapped()) SignalGroup(request);
  }

  // Starts a warm parent in place of an earlier one.
  void StartWarm(const WorkerCommand& command) {
    if (warm_) {
      for (const WarmParent::Order& order : warm_->GiveUp()) StartAfresh(order.command);
      KillWarm(warm_->pid());
    }
    warm_.reset();
    auto result = WarmParent::Start(command, open_files_, group_.get());
    if (const StartError* error = std::get_if<StartError>(&result)) {
      Say(WarmState{false, absl::StrCat("it cannot be started: ", error->step, ": ",
                                        std::strerror(error->error_number))});
      return;
    }
    warm_.emplace(std::get<WarmParent>(std::move(result)));
    warm_pids_.insert(warm_->pid());
  }

  void ServeWarm() {
    if (!warm_) return;
    WarmParent::News news = warm_->Turn(MonoNow());
    for (WarmParent::Forked& forked : news.forked) {
      Add(forked.worker_id, std::move(forked.started), true);
    }
    for (const WarmParent::Order& order : news.refused) StartAfresh(order.command);
    for (const WarmState& state : news.said) Say(state);
    if (warm_->is_ended()) KillWarm(warm_->pid());
  }

  // It may hang, and so may those that it has forked in advance: they are in its group until they
  // become workers.
  void KillWarm(pid_t pid) {
    if (warm_pids_.contains(pid)) ::kill(-pid, SIGKILL);
  }

  void ReadExecResults() {
    for (auto it = workers_.begin(); it != workers_.end();) it = ReadExecResult(it, false);
  }

  // Tells the agent whether the program runs, once that is known: the pipe closes with the exec, or
  // carries the errno of what failed. A worker that never ran is forgotten; Reap() takes what is
  // left of it. A dead one says no more, though the warm process may still hold the pipe. Returns
  // the next worker.
  Workers::iterator ReadExecResult(Workers::iterator it, bool is_dead) {
    auto& [pid, worker] = *it;
    if (!worker.exec_result) return std::next(it);
    const auto result = agent::ReadExecResult(worker.exec_result.get());
    if (std::holds_alternative<ExecPending>(result) && !is_dead) return std::next(it);
    worker.exec_result.reset();
    if (const StartError* error = std::get_if<StartError>(&result)) {
      Say(wire::SpawnFailed{worker.worker_id, error->error_number, error->step});
      return workers_.erase(it);
    }
    std::vector<UniqueFd> descriptors;
    if (worker.pidfd) descriptors.push_back(std::move(worker.pidfd));
    Say(wire::Spawned{worker.worker_id, pid, worker.is_forked}, std::move(descriptors));
    return std::next(it);
  }

  void Reap() {
    int status;
    siginfo_t dead{};
    // The dead is looked at first: until it is reaped, the number of its group is no other's.
    while (::waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 && dead.si_pid > 0) {
      const pid_t pid = std::exchange(dead.si_pid, 0);
      SignalGroupOfDead(pid);
      ::waitpid(pid, &status, 0);
      // Dead, so its exec result is complete; it goes out before the exit.
      if (const auto it = workers_.find(pid); it != workers_.end()) ReadExecResult(it, true);
      const auto it = workers_.find(pid);
      if (it == workers_.end()) {
        if (warm_pids_.erase(pid) > 0) ::kill(-pid, SIGKILL);  // what it has forked has lost it
        continue;
      }
      WorkerExit exit{it->second.worker_id};
      if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
      exit.has_core = WIFSIGNALED(status) && WCOREDUMP(status);
      if (WIFEXITED(status)) exit.exit_code = WEXITSTATUS(status);
      workers_.erase(it);
      Say(exit);
    }
  }

  void SignalGroup(const wire::SignalGroup& request) {
    const auto& [worker_id, signal, group_after] = request;
    for (auto& [pid, worker] : workers_) {
      if (worker.worker_id != worker_id) continue;
      worker.later.reset();
      if (signal == SIGKILL && KillGroupButTrackers(pid)) {
        trackers_until_ = MonoNow() + kTrackerTime;
        return;
      }
      if (group_after > absl::ZeroDuration() && TakesSignalItself(pid, signal)) {
        ::kill(pid, signal);
        if (group_after != absl::InfiniteDuration()) {
          worker.later = {signal, MonoNow() + group_after};
        }
        return;
      }
      // A child that has not got to setsid() yet has no group; the signal waits for it behind its
      // mask.
      if (::kill(-pid, signal) != 0 && errno == ESRCH) ::kill(pid, signal);
      return;
    }
    if (warm_ && warm_->IsForking(worker_id)) early_signals_[worker_id].push_back(request);
  }

  void SignalGroupOfDead(pid_t pid) {
    const auto it = workers_.find(pid);
    if (it != workers_.end() && it->second.later) ::kill(-pid, it->second.later->signal);
  }

  // The leader has it already, and may take a second one for haste.
  void SendLaterSignals() {
    for (auto& [pid, worker] : workers_) {
      if (!worker.later || MonoNow() < worker.later->at) continue;
      std::vector<ProcessInfo> others = ListDescendants(pid);
      std::erase_if(others, [&, leader = pid](const ProcessInfo& process) {
        return ::getpgid(process.pid) != leader;
      });
      SignalProcesses(others, worker.later->signal);
      worker.later.reset();
    }
  }

  MonoTime TrackersUntil() const { return trackers_until_.value_or(MonoNow() + kTrackerTime); }

  void EndTrackers() {
    if (!trackers_until_ || MonoNow() < *trackers_until_) return;
    trackers_until_.reset();
    std::vector<ProcessInfo> strays = ListStrays();
    SignalProcesses(TakeOutTrackers(strays), SIGKILL);
  }

  // Trackers end by themselves, and nobody waits for them.
  void BeginSweep(int signal) {
    Reap();
    sweep_signal_ = signal;
    std::vector<ProcessInfo> strays = ListStrays();
    TakeOutTrackers(strays);
    SignalProcesses(strays, signal);
  }

  void AnswerSweep() {
    if (!sweep_signal_) return;
    std::vector<ProcessInfo> strays = ListStrays();
    const bool has_trackers = !TakeOutTrackers(strays).empty();
    if (*sweep_signal_ == SIGKILL) SignalProcesses(strays, SIGKILL);
    // One look at /proc can miss a process that changes its parent meanwhile, so emptiness is
    // believed after a second; without workers the kernel knows it exactly.
    if (!strays.empty()) return;
    const bool is_alone = workers_.empty() && warm_pids_.empty() && !has_trackers;
    if (is_alone ? HasChildren() : HasStrays()) return;
    sweep_signal_.reset();
    if (has_trackers) trackers_until_ = TrackersUntil();
    Say(wire::Empty{});
  }

  std::vector<ProcessInfo> ListStrays() const {
    std::vector<pid_t> live;
    for (const auto& [pid, worker] : workers_) live.push_back(pid);
    live.insert(live.end(), warm_pids_.begin(), warm_pids_.end());
    std::vector<ProcessInfo> strays = ListDescendants(::getpid(), live);
    // A process of a warm group whose parent has been killed is our child.
    std::erase_if(strays, [&](const ProcessInfo& process) {
      return warm_pids_.contains(::getpgid(process.pid));
    });
    return strays;
  }

  void SayStrays() {
    std::vector<ProcessInfo> strays = ListStrays();
    TakeOutTrackers(strays);
    wire::Strays reply;
    for (const ProcessInfo& stray : strays) {
      if (stray.state != 'Z') reply.pids.push_back(stray.pid);
    }
    Say(reply);
  }

  bool HasStrays() const {
    std::vector<ProcessInfo> strays = ListStrays();
    TakeOutTrackers(strays);
    return !strays.empty();
  }

  bool HasAgentEnded() const {
    pollfd polled{agent_.get(), POLLIN, 0};
    return agent_ && ::poll(&polled, 1, kAgentEndTimeoutMs) == 1;
  }

  // gRPC and its threads have no place in a guardian: another program goes on in this process.
  void HandOverNotice() const {
    const UniqueFd input(::memfd_create("muster-death-notice", MFD_CLOEXEC));
    const ssize_t size = static_cast<ssize_t>(notice_.size());
    if (!input || ::pwrite(input.get(), notice_.data(), notice_.size(), 0) != size) return;
    if (::dup2(input.get(), STDIN_FILENO) != STDIN_FILENO) return;
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    std::string name = kDeathNoticeProgram;
    char* const arguments[] = {name.data(), nullptr};
    ::execve("/proc/self/exe", arguments, environ);
  }

  void Say(const wire::Reply& reply, std::vector<UniqueFd> descriptors = {}) {
    writer_.Push(wire::Encode(reply), std::move(descriptors));
  }

  const UniqueFd socket_;
  const UniqueFd group_;  // of JobGroup; empty: there is none
  const UniqueFd agent_;  // its pidfd
  const UniqueFd child_signals_;
  const rlimit open_files_;
  FrameReader reader_;
  FrameWriter writer_;
  Workers workers_;  // not reaped yet
  std::optional<WarmParent> warm_;
  // Requests for workers that are being forked, by worker.
  absl::btree_map<uint64_t, std::vector<wire::SignalGroup>> early_signals_;
  absl::btree_set<pid_t> warm_pids_;  // of it and of earlier ones, not reaped yet
  std::optional<int> sweep_signal_;
  std::optional<MonoTime> trackers_until_;  // those of killed workers
  std::vector<std::string> remove_at_end_;
  std::string notice_;  // of the agent's death; empty: nobody is told
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

// GuardianClient (guardian.h): the agent's end. It never blocks, but in Shutdown.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/guardian/framed_socket.h"
#include "agent/guardian/guardian.h"
#include "agent/guardian/guardian_wire.h"
#include "agent/machine/pidfd.h"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/post.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {
namespace {

using wire::Overloaded;

constexpr size_t kUnsentBytesMax = size_t{64} << 20;
constexpr size_t kUnsentBytesPause = size_t{64} << 10;
constexpr absl::Duration kRoomTime = absl::Milliseconds(20);
// So that a flood of replies does not keep the loop from its other work.
constexpr int kRepliesPerTurnMax = 64;

absl::StatusCode CodeFor(const wire::SpawnFailed& failure) {
  switch (failure.error_number) {
    case ENOENT:
    case ENOTDIR:
      return failure.step == "execve" ? absl::StatusCode::kNotFound
                                      : absl::StatusCode::kInvalidArgument;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case ENOEXEC:
    case E2BIG:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

// What a failed start needs to be told in words; the rest of the command is not kept.
struct SpawnDescription {
  std::string program;
  std::string working_directory;
  std::string cpus;
};

std::string ExecHint(const std::string& program, int error_number) {
  const bool has_slash = absl::StrContains(program, '/');
  if (error_number == ENOENT && !has_slash) return "; it is not in PATH";
  if (error_number == ENOENT && ::access(program.c_str(), F_OK) == 0) {
    return "; the file is there, but the interpreter that it names is not";
  }
  if (error_number == EACCES) return "; it must be a file with the executable bit (chmod +x)";
  if (error_number == ENOEXEC) return "; a script must begin with #! and its interpreter";
  if (error_number == E2BIG) return "; arguments and environment are longer than the kernel allows";
  return "";
}

absl::Status DescribeFailure(const SpawnDescription& spawn, const wire::SpawnFailed& failure) {
  const std::string reason = std::strerror(failure.error_number);
  std::string text = absl::StrCat("cannot start ", spawn.program, ": ");
  if (failure.step == "execve") {
    absl::StrAppend(&text, reason, ExecHint(spawn.program, failure.error_number));
  } else if (failure.step == "chdir") {
    absl::StrAppend(&text, "working directory ", spawn.working_directory, ": ", reason);
  } else if (failure.step == "sched_setaffinity") {
    absl::StrAppend(&text, "none of the CPUs ", spawn.cpus, " may be used: ", reason);
  } else if (failure.step == "fork") {
    absl::StrAppend(&text, "fork: ", reason, "; see the limits on processes (ulimit -u, pids.max)");
  } else if (failure.error_number == EMFILE) {
    absl::StrAppend(&text, failure.step, ": ", reason, "; see the limit on open files (ulimit -n)");
  } else {
    absl::StrAppend(&text, failure.step, ": ", reason);
  }
  return absl::Status(CodeFor(failure), text);
}

bool HasNul(const std::vector<std::string>& strings) {
  return std::any_of(strings.begin(), strings.end(),
                     [](const std::string& s) { return s.find('\0') != std::string::npos; });
}

// Errors: kInvalidArgument.
absl::Status CheckCommand(const WorkerCommand& command) {
  if (command.argv.empty() || command.argv[0].empty()) {
    return absl::InvalidArgumentError("cannot start a worker: its command is empty");
  }
  const bool has_nul =
      HasNul(command.argv) || HasNul(command.environment) || HasNul({command.working_directory});
  if (has_nul) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot start ", command.argv[0], ": an argument or variable has a NUL byte in it"));
  }
  if (std::any_of(command.cpus.begin(), command.cpus.end(), [](int cpu) { return cpu < 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot start ", command.argv[0], ": a CPU number is below 0"));
  }
  return absl::OkStatus();
}

// Errors: kResourceExhausted.
absl::StatusOr<std::vector<UniqueFd>> DuplicateStreams(const WorkerCommand& command) {
  std::vector<UniqueFd> duplicates;
  for (int fd : {command.stdin_fd, command.stdout_fd, command.stderr_fd}) {
    if (fd < 0) continue;
    duplicates.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (duplicates.back()) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", command.argv[0], ": its streams cannot be duplicated: ",
                     std::strerror(errno), "; see the limit on open files (ulimit -n)"));
  }
  return duplicates;
}

}  // namespace

struct GuardianClient::State {
  State(asio::io_context& io, GuardianHandle handle, GuardianListener its_listener)
      : loop(io),
        pid(handle.pid),
        pidfd(OpenPidfd(handle.pid)),
        fd(handle.socket.get()),
        socket(io),
        end(io),
        end_timer(io),
        listener(std::move(its_listener)),
        reader(fd),
        writer(fd) {
    asio::error_code error;
    socket.assign(handle.socket.release(), error);
    open = !error;
  }

  static void AwaitReplies(const std::shared_ptr<State>& self) {
    self->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                            [self](const asio::error_code&) {
                              for (int i = 0; self->open && i < kRepliesPerTurnMax; ++i) {
                                if (!self->ReadOne()) break;
                              }
                              if (self->open) AwaitReplies(self);
                            });
  }

  // What the socket does not take now is sent when it does. A broken one is noticed by the reader,
  // behind the last replies.
  static void Send(const std::shared_ptr<State>& self, const wire::Request& request,
                   std::vector<UniqueFd> descriptors = {}) {
    if (!self->open) return;
    self->writer.Push(wire::Encode(request), std::move(descriptors));
    FlushQueue(self);
    if (self->pidfd) SendSignal(self->pidfd, SIGCONT);
  }

  // What waits in the queue holds descriptors, of which there may be few. The guardian takes it at
  // once, as a rule; one that does not is not waited for.
  void MakeRoom() {
    const MonoTime deadline = MonoNow() + kRoomTime;
    while (writer.queued_bytes() > kUnsentBytesPause && MonoNow() < deadline) {
      pollfd polled{fd, POLLOUT, 0};
      ::poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(kRoomTime)));
      if (!writer.Flush().ok()) return;
    }
  }

  static void FlushQueue(const std::shared_ptr<State>& self) {
    if (!self->writer.Flush().ok() || self->writer.empty() || self->awaiting_room) return;
    self->awaiting_room = true;
    self->socket.async_wait(asio::posix::stream_descriptor::wait_write,
                            [self](const asio::error_code&) {
                              self->awaiting_room = false;
                              if (self->open) FlushQueue(self);
                            });
  }

  static void FailLater(const std::shared_ptr<State>& self, uint64_t worker_id,
                        absl::Status status) {
    asio::post(self->loop, [self, worker_id, status] {
      if (self->open) self->listener.on_spawn_failed(worker_id, status);
    });
  }

  // Whether there may be more to read.
  bool ReadOne() {
    auto frame = reader.Read();
    if (frame.ok() && !frame->has_value()) return false;
    if (!frame.ok()) {
      Lose(absl::StrCat("guardian (pid ", pid, ") is gone; its workers died with it"));
      return false;
    }
    auto reply = wire::DecodeReply((*frame)->body);
    if (!reply.ok()) {
      Lose(absl::StrCat("guardian (pid ", pid,
                        ") sent what cannot be decoded; it and its workers are given up"));
      return false;
    }
    Tell(*reply, (*frame)->descriptors);
    return true;
  }

  void Tell(const wire::Reply& reply, std::vector<UniqueFd>& descriptors) {
    std::visit(
        Overloaded{[&](const wire::Spawned& spawned) {
                     starting.erase(spawned.worker_id);
                     UniqueFd pidfd = descriptors.empty() ? UniqueFd() : std::move(descriptors[0]);
                     listener.on_spawned(spawned.worker_id, spawned.pid, std::move(pidfd),
                                         spawned.is_forked);
                   },
                   [&](const wire::SpawnFailed& failed) {
                     const auto node = starting.extract(failed.worker_id);
                     const auto description = node ? node.mapped() : SpawnDescription{"a worker"};
                     listener.on_spawn_failed(failed.worker_id,
                                              DescribeFailure(description, failed));
                   },
                   [&](const WorkerExit& exit) { listener.on_exited(exit); },
                   [&](const WarmState& state) { listener.on_warm(state); },
                   [&](const wire::Empty&) { listener.on_empty(); },
                   [&](const wire::Strays& strays) { listener.on_strays(strays.pids); }},
        reply);
  }

  // This end is in order.
  void TakeBackNotice() {
    if (!open) return;
    writer.Push(wire::Encode(wire::LeaveNotice{}));
    writer.Flush().IgnoreError();
  }

  void Lose(const std::string& reason) {
    Close();
    listener.on_lost(reason);
  }

  void Close() {
    open = false;
    asio::error_code ignored;
    socket.close(ignored);
  }

  asio::io_context& loop;
  const pid_t pid;
  const UniqueFd pidfd;  // empty if there was no descriptor left
  const int fd;
  asio::posix::stream_descriptor socket;
  asio::posix::stream_descriptor end;  // a pidfd of the guardian, while its end is waited for
  asio::steady_timer end_timer;
  const GuardianListener listener;
  FrameReader reader;
  FrameWriter writer;
  absl::btree_map<uint64_t, SpawnDescription> starting;
  bool awaiting_room = false;
  bool open = false;
};

GuardianClient::GuardianClient(asio::io_context& loop, GuardianHandle handle,
                               GuardianListener listener) {
  wire::LeaveNotice notice{std::move(handle.death_notice)};
  state_ = std::make_shared<State>(loop, std::move(handle), std::move(listener));
  if (state_->open) {
    State::AwaitReplies(state_);
    if (!notice.notice.empty()) State::Send(state_, notice);
    return;
  }
  asio::post(loop, [state = state_] { state->Lose("the guardian's socket cannot be watched"); });
}

GuardianClient::~GuardianClient() {
  state_->Close();
  ::waitpid(state_->pid, nullptr, WNOHANG);
}

pid_t GuardianClient::pid() const { return state_->pid; }

void GuardianClient::Spawn(const WorkerCommand& command) {
  if (!state_->open) return;
  if (absl::Status status = CheckCommand(command); !status.ok()) {
    State::FailLater(state_, command.worker_id, std::move(status));
    return;
  }
  auto streams = DuplicateStreams(command);
  if (!streams.ok()) {
    State::FailLater(state_, command.worker_id, streams.status());
    return;
  }
  const wire::Request request = command;
  const size_t bytes = wire::Encode(request).size();
  const SpawnDescription description{command.argv[0], command.working_directory,
                                     absl::StrJoin(command.cpus, ",")};
  if (bytes > kFrameBytesMax || state_->writer.queued_bytes() + bytes > kUnsentBytesMax) {
    State::FailLater(state_, command.worker_id,
                     DescribeFailure(description, {command.worker_id, E2BIG, "execve"}));
    return;
  }
  if (command.start != WorkerStart::kWarm) state_->starting[command.worker_id] = description;
  State::Send(state_, request, *std::move(streams));
  state_->MakeRoom();
}

void GuardianClient::SignalGroup(uint64_t worker_id, int signal, absl::Duration group_after) {
  State::Send(state_, wire::SignalGroup{worker_id, signal, group_after});
}

void GuardianClient::Sweep(int signal) { State::Send(state_, wire::Sweep{signal}); }

void GuardianClient::ListStrays() { State::Send(state_, wire::ListStrays{}); }

void GuardianClient::RemoveAtEnd(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  State::Send(state_, wire::RemoveAtEnd{error ? path : absolute.string()});
}

void GuardianClient::Wake() {
  if (state_->open && state_->pidfd) SendSignal(state_->pidfd, SIGCONT);
}

void GuardianClient::BeginShutdown(absl::Duration timeout, IfLate if_late,
                                   std::function<void(bool ended)> on_ended) {
  state_->TakeBackNotice();
  state_->Close();
  UniqueFd pidfd = OpenPidfd(state_->pid);
  // Reaped already: the guardian was lost before.
  if (!pidfd) {
    asio::post(state_->loop, [on_ended] { on_ended(true); });
    return;
  }
  SendSignal(pidfd, SIGCONT);
  const auto finish = [state = state_, if_late, on_ended](bool ended) {
    if (!ended && if_late == IfLate::kKill) SendSignal(state->pidfd, SIGKILL);
    asio::error_code ignored;
    state->end.close(ignored);
    state->end_timer.cancel();
    ::waitpid(state->pid, nullptr, WNOHANG);
    on_ended(ended);
  };
  state_->end.assign(pidfd.release());
  state_->end.async_wait(asio::posix::stream_descriptor::wait_read,
                         [finish](const asio::error_code& error) {
                           if (!error) finish(true);
                         });
  state_->end_timer.expires_after(absl::ToChronoNanoseconds(timeout));
  state_->end_timer.async_wait([finish](const asio::error_code& error) {
    if (!error) finish(false);
  });
}

bool GuardianClient::Shutdown(absl::Duration timeout) {
  state_->TakeBackNotice();
  state_->Close();
  const MonoTime deadline = MonoNow() + timeout;
  // It is our child: until it is reaped here its pid names nothing else.
  while (::waitpid(state_->pid, nullptr, WNOHANG) == 0) {
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - MonoNow());
    UniqueFd pidfd = OpenPidfd(state_->pid);
    pollfd polled{pidfd.get(), POLLIN, 0};
    if (left_ms <= 0 || !pidfd) return false;
    ::poll(&polled, 1, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
  }
  return true;
}

}  // namespace muster::agent

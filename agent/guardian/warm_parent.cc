#include "agent/guardian/warm_parent.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/machine/pidfd.h"

namespace muster::agent {
namespace {

constexpr int kOutputBytesMax = 1 << 20;  // what modules may print as they are imported
constexpr absl::string_view kReady{"ready\0", 6}, kFailed{"failed\0", 7};

// A pipe for the process's own output, whose other end it opens itself.
UniqueFd MakeOutput() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return UniqueFd();
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  ::fcntl(write_end.get(), F_SETPIPE_SZ, kOutputBytesMax);
  return write_end;
}

// The pid of the worker that has said it is ours; nothing: not yet, or 0: it never will.
std::optional<pid_t> ReceivePid(int result) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(result, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (n != 1 || byte != '!') return 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(c), sizeof sender);
    return sender.pid;
  }
  return 0;
}

bool IsOwnChild(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// The worker that has answered, allowed to go on; empty if it was none of ours.
std::optional<StartedWorker> LetGo(pid_t pid, UniqueFd& result) {
  if (pid <= 0 || !IsOwnChild(pid)) return std::nullopt;
  UniqueFd pidfd = OpenPidfd(pid);
  if (::send(result.get(), "!", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return std::nullopt;
  return StartedWorker{pid, std::move(pidfd), std::move(result)};
}

std::string EncodeOrder(const WorkerCommand& command) {
  return absl::StrCat(command.worker_id, absl::string_view("\0", 1), command.working_directory,
                      absl::string_view("\0", 1), absl::StrJoin(command.cpus, ","),
                      absl::string_view("\0", 1), "012", absl::string_view("\0", 1),
                      absl::StrJoin(command.environment, absl::string_view("\0", 1)));
}

}  // namespace

WarmParent::WarmParent(StartedWorker process, UniqueFd control, std::vector<std::string> argv)
    : process_(std::move(process)),
      control_(std::move(control)),
      argv_(std::move(argv)),
      reader_(control_.get()),
      writer_(control_.get()) {}

std::variant<WarmParent, StartError> WarmParent::Start(WorkerCommand command,
                                                       const rlimit& open_files, int group) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return StartError{errno, "socketpair"};
  }
  UniqueFd ours(ends[0]), its(ends[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd out = MakeOutput(), errors = MakeOutput();
  if (!nothing || !out || !errors) return StartError{errno, "pipe"};
  command.stdin_fd = nothing.get();
  command.stdout_fd = out.get();
  command.stderr_fd = errors.get();
  command.control_fd = its.get();
  auto result = StartWorker(command, open_files, group);
  if (StartError* error = std::get_if<StartError>(&result)) return std::move(*error);
  return WarmParent(std::get<StartedWorker>(std::move(result)), std::move(ours),
                    std::move(command.argv));
}

bool WarmParent::CanFork(const WorkerCommand& command) const {
  return is_ready_ && !is_ended_ && command.argv == argv_;
}

void WarmParent::Fork(const WorkerCommand& command) {
  Pending pending{.order = {.command = command, .streams = {}}, .result = {}, .deadline = {}};
  pending.deadline = MonoNow() + kPatience;
  const std::array<int, 3> given = {command.stdin_fd, command.stdout_fd, command.stderr_fd};
  std::vector<UniqueFd> beside;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0) {
    pending.result.reset(ends[0]);
    beside.emplace_back(ends[1]);
    // Its own end blocks: the worker waits there to be let go on.
    ::fcntl(ends[1], F_SETFL, 0);
    const int on = 1;
    ::setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  }
  for (int i = 0; i < 3; ++i) {
    const int fd = given[i] < 0 ? i : given[i];  // as inherited
    pending.order.streams[i].reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    beside.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  }
  WorkerCommand& kept = pending.order.command;
  kept.stdin_fd = pending.order.streams[0].get();
  kept.stdout_fd = pending.order.streams[1].get();
  kept.stderr_fd = pending.order.streams[2].get();
  const bool has_all = beside.size() == 4 && std::all_of(beside.begin(), beside.end(),
                                                         [](const UniqueFd& fd) { return !!fd; });
  // If a descriptor could not be made, the fork is refused in the next turn.
  if (has_all) {
    writer_.Push(EncodeOrder(command), std::move(beside));
  } else {
    pending.result.reset();
  }
  pending_.push_back(std::move(pending));
}

bool WarmParent::IsForking(uint64_t worker_id) const {
  return std::any_of(pending_.begin(), pending_.end(), [worker_id](const Pending& pending) {
    return pending.order.command.worker_id == worker_id;
  });
}

void WarmParent::AddPolled(std::vector<pollfd>& polled) const {
  if (!is_ended_) {
    const short events = writer_.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back({control_.get(), events, 0});
  }
  for (const Pending& pending : pending_) {
    if (pending.result) polled.push_back({pending.result.get(), POLLIN, 0});
  }
}

MonoTime WarmParent::NextDeadline() const {
  MonoTime next = MonoTime::InfiniteFuture();
  for (const Pending& pending : pending_) next = Min(next, pending.deadline);
  return next;
}

void WarmParent::ReadFrames(News& news) {
  while (!is_ended_) {
    auto frame = reader_.Read();
    if (frame.ok() && !frame->has_value()) return;
    if (!frame.ok()) {
      End("it has ended", news);
      return;
    }
    const absl::string_view body = (*frame)->body;
    if (absl::StartsWith(body, kReady)) {
      is_ready_ = true;
      news.said.push_back({true, std::string(body.substr(kReady.size()))});
    } else if (absl::StartsWith(body, kFailed)) {
      End(std::string(body.substr(kFailed.size())), news);
    }
  }
}

void WarmParent::End(std::string why, News& news) {
  is_ended_ = true;
  news.said.push_back({false, std::move(why)});
}

std::string WarmParent::WhyNot(const Pending& pending, bool has_answered) const {
  if (!pending.result) return "there is no descriptor left for a worker (ulimit -n)";
  if (has_answered) return absl::StrCat("a process that it (pid ", pid(), ") has forked has ended");
  return absl::StrCat("it (pid ", pid(), ") has not handed over a worker within ",
                      absl::FormatDuration(kPatience));
}

WarmParent::News WarmParent::Turn(MonoTime now) {
  News news;
  ReadFrames(news);
  if (!is_ended_ && !writer_.Flush().ok()) {
    // Why it has ended may have come since.
    ReadFrames(news);
    if (!is_ended_) End("it has ended", news);
  }
  std::vector<Pending> left;
  for (Pending& pending : pending_) {
    const std::optional<pid_t> pid =
        pending.result ? ReceivePid(pending.result.get()) : std::optional<pid_t>(0);
    if (!pid && now < pending.deadline) {
      left.push_back(std::move(pending));
      continue;
    }
    // One that comes later finds its socket closed, and ends.
    auto started = pid ? LetGo(*pid, pending.result) : std::nullopt;
    if (started) {
      news.forked.push_back({pending.order.command.worker_id, *std::move(started)});
    } else {
      if (!is_ended_) End(WhyNot(pending, pid.has_value()), news);
      news.refused.push_back(std::move(pending.order));
    }
  }
  pending_ = std::move(left);
  return news;
}

std::vector<WarmParent::Order> WarmParent::GiveUp() {
  std::vector<Order> orders;
  for (Pending& pending : pending_) orders.push_back(std::move(pending.order));
  pending_.clear();
  return orders;
}

}  // namespace muster::agent

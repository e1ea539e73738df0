#include "agent/worker_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(500);
constexpr size_t kReadBytes = 64 * 1024;

absl::Status PipeError(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("TORCHELASTIC_TIMER_FILE=", path, ": cannot be made: ", std::strerror(error)));
}

absl::Status MakePipe(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISFIFO(info.st_mode)) return PipeError(path, EEXIST);
    unlink(path.c_str());
  }
  return mkfifo(path.c_str(), 0600) == 0 ? absl::OkStatus() : PipeError(path, errno);
}

// The state in /proc/<pid>/stat, behind the name in brackets; 0 if there is no such process.
char StateOf(int pid) {
  const std::string text = TextOf(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? 0 : text[name_end + 2];
}

}  // namespace

WorkerWatch::WorkerWatch(asio::io_context& loop, WatchOptions options, WatchListener listener)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      pipe_(loop),
      expiry_(loop),
      look_(loop) {}

absl::Status WorkerWatch::Start() {
  if (options_.uninterruptible_timeout > absl::ZeroDuration()) LookAtStates();
  if (options_.timer_pipe.empty()) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(MakePipe(options_.timer_pipe));
  // The pipe is opened for both directions, so that it has no end of file when no worker has it
  // open.
  const int fd = open(options_.timer_pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return PipeError(options_.timer_pipe, errno);
  pipe_.assign(fd);
  ReadPipe();
  return absl::OkStatus();
}

void WorkerWatch::StartRound() {
  timers_.Clear();
  uninterruptible_since_.clear();
  ArmTimer();
}

void WorkerWatch::Stop() {
  expiry_.cancel();
  look_.cancel();
  if (!pipe_.is_open()) return;
  asio::error_code ignored;
  pipe_.close(ignored);
  unlink(options_.timer_pipe.c_str());
}

void WorkerWatch::ReadPipe() {
  pipe_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [this](const asio::error_code& error) {
                     if (error) return;
                     std::string chunk(kReadBytes, '\0');
                     const ssize_t length = read(pipe_.native_handle(), chunk.data(), chunk.size());
                     if (length > 0) unread_.append(chunk, 0, static_cast<size_t>(length));
                     TakeLines();
                     ReadPipe();
                   });
}

void WorkerWatch::TakeLines() {
  size_t begin = 0;
  for (size_t end; (end = unread_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const absl::Status taken = timers_.Take(absl::string_view(unread_).substr(begin, end - begin));
    if (taken.ok() || std::exchange(has_complained_, true)) continue;
    log::Write(log::Level::kWarning, "timers", taken.message());
  }
  unread_.erase(0, begin);
  if (unread_.size() > FileTimers::kLineBytesMax) unread_.clear();
  ArmTimer();
}

// Workers say when by the wall clock, so it decides; the steady timer only wakes us.
void WorkerWatch::ArmTimer() {
  expiry_.cancel();
  const absl::Time next = timers_.NextExpiry();
  if (next == absl::InfiniteFuture()) return;
  const absl::Duration left =
      std::clamp(next - absl::Now(), absl::ZeroDuration(), absl::Seconds(1));
  expiry_.expires_after(absl::ToChronoNanoseconds(left));
  expiry_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    EndExpired();
    ArmTimer();
  });
}

// Only our own workers, and what runs in their process groups, are ended: the pid is the word of
// the process that wrote to the pipe.
void WorkerWatch::EndExpired() {
  const std::vector<int> workers = listener_.worker_pids();
  for (const FileTimers::Expired& timer : timers_.Expire(absl::Now())) {
    const int group = getpgid(timer.pid);
    const auto worker = std::find_if(workers.begin(), workers.end(),
                                     [&](int pid) { return pid == timer.pid || pid == group; });
    if (worker == workers.end()) continue;
    std::string why = absl::StrCat("its timer '", timer.scope, "' ran out");
    if (timer.signal == 0) {
      log::Write(log::Level::kWarning, "timer_expired",
                 absl::StrCat("pid ", timer.pid, ": ", why, "; it names no signal"));
      continue;
    }
    absl::StrAppend(&why, ", so it was ended by ", SignalName(timer.signal));
    listener_.on_expired(*worker, std::move(why));
    kill(timer.pid, timer.signal);
  }
}

void WorkerWatch::LookAtStates() {
  std::map<int, MonoTime> since;
  std::vector<int> stuck;
  const MonoTime now = MonoNow();
  for (const int pid : listener_.worker_pids()) {
    if (StateOf(pid) != 'D') continue;
    const auto known = uninterruptible_since_.find(pid);
    since[pid] = known == uninterruptible_since_.end() ? now : known->second;
    if (now - since[pid] >= options_.uninterruptible_timeout) stuck.push_back(pid);
  }
  uninterruptible_since_ = std::move(since);
  for (const int pid : stuck) {
    uninterruptible_since_.erase(pid);
    listener_.on_stuck(
        pid, absl::StrCat("it was in the kernel's uninterruptible sleep (state D) for ",
                          absl::FormatDuration(options_.uninterruptible_timeout),
                          ", as long as TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT allows"));
  }
  look_.expires_after(
      absl::ToChronoNanoseconds(std::min(kLookInterval, options_.uninterruptible_timeout / 2)));
  look_.async_wait([this](const asio::error_code& error) {
    if (!error) LookAtStates();
  });
}

}  // namespace muster::agent

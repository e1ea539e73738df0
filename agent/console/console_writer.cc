#include "agent/console/console_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/mono_time.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

constexpr auto kRetryInterval = std::chrono::milliseconds(5);

// Opening a pseudo terminal's master again would make a new terminal.
bool IsPtyMaster(int fd) {
  unsigned number = 0;
  return ::ioctl(fd, TIOCGPTN, &number) == 0;
}

bool HasRoom(int fd, int timeout_ms) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace

ConsoleWriter::ConsoleWriter(asio::io_context& loop, Options options)
    : options_(std::move(options)), room_(loop), retry_(loop) {
  struct stat info;
  if (::fstat(options_.fd, &info) != 0) {
    is_gone_ = true;  // closed by our parent
  } else if (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode)) {
    way_ = Way::kWhole;
  } else if (S_ISSOCK(info.st_mode)) {
    way_ = Way::kSocket;
  } else if (!IsPtyMaster(options_.fd)) {
    OpenOwnDescription();
  }
}

// O_NONBLOCK belongs to the open file description, which workers and the shell share with us.
void ConsoleWriter::OpenOwnDescription() {
  const std::string path = absl::StrCat("/proc/self/fd/", options_.fd);
  own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (own_) way_ = Way::kWhole;
}

ssize_t ConsoleWriter::TryWrite(absl::string_view bytes) {
  if (way_ == Way::kSocket)
    return ::send(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (way_ == Way::kWhole) return ::write(fd(), bytes.data(), bytes.size());
  if (!HasRoom(fd(), 0)) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd(), bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
}

size_t ConsoleWriter::WriteWhatFits(absl::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size() && !is_gone_) {
    const ssize_t put = TryWrite(bytes.substr(written));
    if (put >= 0) {
      written += put;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      GiveUp(errno);
    }
  }
  return written;
}

void ConsoleWriter::Write(absl::string_view bytes) {
  if (is_gone_ || bytes.empty()) return;
  if (backlog_.empty()) bytes.remove_prefix(WriteWhatFits(bytes));
  if (is_gone_ || bytes.empty()) return;
  if (backlog_.size() + bytes.size() > kBacklogBytesMax) {
    dropped_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  absl::StrAppend(&backlog_, bytes);
  WaitForRoom();
}

void ConsoleWriter::WriteBacklog() {
  const size_t written = WriteWhatFits(backlog_);
  if (is_gone_) return;
  backlog_.erase(0, written);
  if (!backlog_.empty() || dropped_bytes_ == 0) return;
  const int64_t dropped = std::exchange(dropped_bytes_, 0);
  log::Write(log::Level::kWarning, "console_lines_dropped",
             absl::StrCat(options_.name, " was blocked for so long that ", dropped,
                          " bytes were dropped"));
}

void ConsoleWriter::WaitForRoom() {
  if (is_waiting_) return;
  is_waiting_ = true;
  const auto on_room = [this, alive = std::weak_ptr<bool>(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) OnRoom();
  };
  asio::error_code error = asio::error::operation_not_supported;
  if (own_ && !room_.is_open()) {
    UniqueFd duplicate(::fcntl(own_.get(), F_DUPFD_CLOEXEC, 0));
    room_.assign(duplicate.get(), error);
    if (!error) duplicate.release();
  }
  if (room_.is_open()) {
    room_.async_wait(asio::posix::stream_descriptor::wait_write, on_room);
  } else {
    retry_.expires_after(kRetryInterval);
    retry_.async_wait(on_room);
  }
}

void ConsoleWriter::OnRoom() {
  is_waiting_ = false;
  WriteBacklog();
  if (is_congested()) {
    WaitForRoom();
  } else {
    options_.on_drained();
  }
}

bool ConsoleWriter::Flush(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  while (true) {
    WriteBacklog();
    const absl::Duration left = deadline - MonoNow();
    if (!is_congested() || left <= absl::ZeroDuration()) return !is_congested();
    HasRoom(fd(), static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1000)));
  }
}

void ConsoleWriter::GiveUp(int error) {
  is_gone_ = true;
  backlog_.clear();
  log::Write(log::Level::kWarning, "console_gone",
             absl::StrCat("cannot write to ", options_.name, " any more: ", std::strerror(error),
                          "; the workers' output is not shown any more, the job goes on"),
             {{"errno", std::strerror(error)}});
}

}  // namespace muster::agent

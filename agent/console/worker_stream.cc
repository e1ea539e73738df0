#include "agent/console/worker_stream.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

constexpr size_t kTerminalBytes = 256 * 1024;  // more than one holds

}  // namespace

absl::Status WorkerStream::Open(UniqueFd end) {
  asio::error_code error;
  end_.assign(end.get(), error);
  if (error) return LogPathError("watch the output of", worker.directory, error.value());
  end.release();
  return absl::OkStatus();
}

void WorkerStream::Wait(std::function<void()> then) {
  if (std::exchange(is_waiting_, true)) return;
  end_.async_wait(asio::posix::stream_descriptor::wait_read,
                  [then = std::move(then)](const asio::error_code& error) {
                    if (!error) then();
                  });
}

bool WorkerStream::Read(size_t bytes_max, std::string& buffer, Take take) {
  while (bytes_max > 0) {
    const ssize_t got = ::read(fd(), buffer.data(), std::min(bytes_max, buffer.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;  // EIO: nobody holds a pseudo terminal's other end
    if (got == 0) return false;
    const bool goes_on = take({buffer.data(), static_cast<size_t>(got)});
    bytes_max -= got;
    // A pipe has given all that it had; a terminal gives one page at a time.
    if (!is_terminal && static_cast<size_t>(got) < buffer.size()) return true;
    if (!goes_on) return true;
  }
  return true;
}

void WorkerStream::Drain(std::string& buffer, Take take) {
  if (is_terminal) {
    Read(kTerminalBytes, buffer, take);  // what is on its way there is waited for by read(2)
    return;
  }
  int available = 0;
  if (::ioctl(fd(), FIONREAD, &available) != 0) return;
  while (available > 0) {
    const size_t bytes = std::min<size_t>(available, buffer.size());
    if (!Read(bytes, buffer, take)) return;
    available -= static_cast<int>(bytes);
  }
}

void WorkerStream::CutLines(absl::string_view bytes, TakeLine take) {
  cutter_.Append(bytes, [&](const LinePiece& piece) { TakePiece(piece, take); });
}

void WorkerStream::FinishLine(TakeLine take) {
  cutter_.Finish([&](const LinePiece& piece) { TakePiece(piece, take); });
}

void WorkerStream::TakePiece(const LinePiece& piece, TakeLine take) {
  absl::string_view line = piece.text;
  if (!piece.begins || !piece.ends) {
    const size_t room = kLineBytesMax - std::min(kLineBytesMax, line_.size());
    absl::StrAppend(&line_, line.substr(0, room));
    if (!piece.ends) return;
    line = line_;
  }
  take(line);
  line_.clear();
}

}  // namespace muster::agent

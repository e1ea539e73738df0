// LogPump: from workers' streams to files and consoles, while an attempt runs.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/console/log_pump_state.h"

namespace muster::agent {
namespace {

constexpr size_t kTurnBytes =
    256 * 1024;  // of one stream, before timers and other streams get their turn

}  // namespace

void LogPump::State::WaitFor(Pipe& pipe) {
  if (pipe.is_waiting) return;
  pipe.is_waiting = true;
  pipe.end.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, id = pipe.id, alive = std::weak_ptr<bool>(alive)](const asio::error_code& error) {
        if (!error && !alive.expired()) OnReadable(id);
      });
}

void LogPump::State::OnReadable(int id) {
  const auto found = pipes.find(id);
  if (found == pipes.end()) return;
  Pipe& pipe = found->second;
  pipe.is_waiting = false;
  if (pipe.is_shown && consoles.of(pipe.stream).writer.is_congested())
    return;  // ResumeReading goes on
  if (Read(pipe, kTurnBytes)) {
    WaitFor(pipe);
  } else {
    EndStream(id);
  }
}

void LogPump::State::ResumeReading() {
  for (auto& [id, pipe] : pipes) WaitFor(pipe);
}

bool LogPump::State::Read(Pipe& pipe, size_t bytes_max) {
  while (bytes_max > 0) {
    const ssize_t got =
        ::read(pipe.end.native_handle(), buffer.data(), std::min(bytes_max, buffer.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;  // EIO: nobody holds a pseudo terminal's other end
    if (got == 0) return false;
    Deliver(pipe, {buffer.data(), static_cast<size_t>(got)});
    bytes_max -= got;
    // A pipe has given all that it had; a terminal gives one page at a time.
    if (!pipe.is_terminal && static_cast<size_t>(got) < buffer.size()) return true;
    if (consoles.of(pipe.stream).writer.is_congested()) return true;
  }
  return true;
}

void LogPump::State::Deliver(Pipe& pipe, absl::string_view bytes) {
  WorkerStream& stream = pipe.worker->streams[Index(pipe.stream)];
  pipe.worker->tail.Append(pipe.stream, bytes);
  if (stream.file) stream.file->Append(bytes);
  if (stream.route.to_filtered) {
    pipe.filter_cutter.Append(bytes, [&](const LinePiece& piece) { Filter(pipe, piece); });
  }
  if (pipe.is_shown) consoles.of(pipe.stream).layout->Append(pipe.id, bytes, MonoNow());
  WriteOut();
}

void LogPump::State::Filter(Pipe& pipe, const LinePiece& piece) {
  const std::vector<std::string>& filters = pipe.stream == ConsoleStream::kStdout
                                                ? options.logs.duplicate_stdout_filters
                                                : options.logs.duplicate_stderr_filters;
  absl::string_view line = piece.text;
  if (!piece.begins || !piece.ends) {
    const size_t room = kLineBytesMax - std::min(kLineBytesMax, pipe.filter_line.size());
    absl::StrAppend(&pipe.filter_line, line.substr(0, room));
    if (!piece.ends) return;
    line = pipe.filter_line;
  }
  if (MatchesAnyFilter(line, filters)) {
    const std::string& prefix = pipe.worker->streams[Index(pipe.stream)].prefix;
    attempt.AddFiltered(pipe.stream, prefix, line);
  }
  pipe.filter_line.clear();
}

void LogPump::State::EndFilterLine(Pipe& pipe) {
  pipe.filter_cutter.Finish([&](const LinePiece& piece) { Filter(pipe, piece); });
}

void LogPump::State::WriteOut() {
  attempt.WriteOut();
  consoles.WriteOut();
}

// Bounded by what the pipe holds at the start, so that a descendant that keeps writing cannot keep
// us here.
void LogPump::State::Drain(int id) {
  Pipe& pipe = pipes.at(id);
  if (pipe.is_terminal) {
    Read(pipe,
         kTurnBytes);  // more than one holds; what is on its way there is waited for by read(2)
    return;
  }
  int available = 0;
  if (::ioctl(pipe.end.native_handle(), FIONREAD, &available) != 0) return;
  while (available > 0) {
    const size_t bytes = std::min<size_t>(available, buffer.size());
    if (!Read(pipe, bytes)) return;
    available -= static_cast<int>(bytes);
  }
}

void LogPump::State::EndStream(int id) {
  Pipe& pipe = pipes.at(id);
  if (input && input->worker() == pipe.end.native_handle()) input.reset();
  EndFilterLine(pipe);
  if (pipe.is_shown) consoles.of(pipe.stream).layout->End(id, MonoNow());
  WriteOut();
  pipes.erase(id);
}

}  // namespace muster::agent

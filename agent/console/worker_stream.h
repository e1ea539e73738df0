// A worker's output arrives on a pipe or a pseudo terminal, which may carry both of its streams,
// and is cut into lines.
//
// Loop thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/console/attempt.h"
#include "agent/console/line_format.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "proto/io/unique_fd.h"

namespace muster::agent {

class WorkerStream {
 public:
  // `worker` outlives this.
  WorkerStream(asio::io_context& loop, int id, ConsoleStream which, AttemptWorker& worker,
               bool is_terminal)
      : id(id), which(which), worker(worker), is_terminal(is_terminal), end_(loop) {}

  // The end to read. Errors: LogPathError's.
  absl::Status Open(UniqueFd end);
  int fd() { return end_.native_handle(); }
  AttemptStream& its() { return worker.of(which); }

  // `then` is called once, from the loop, when there is something to read; it calls Awake. Waits
  // already: nothing.
  void Wait(std::function<void()> then);
  void Awake() { is_waiting_ = false; }
  // Reads until that many bytes have come, the pipe is empty or `take` says that it is enough.
  // False at the end of the stream.
  using Take = absl::FunctionRef<bool(absl::string_view bytes)>;
  bool Read(size_t bytes_max, std::string& buffer, Take take);
  // Reads what it holds now, however much more is being written.
  void Drain(std::string& buffer, Take take);

  // Calls `take` with each line that ends in `bytes`, at most kLineBytesMax of it.
  using TakeLine = absl::FunctionRef<void(absl::string_view line)>;
  void CutLines(absl::string_view bytes, TakeLine take);
  // The line that has begun is taken too.
  void FinishLine(TakeLine take);

  const int id;
  const ConsoleStream which;
  AttemptWorker& worker;
  const bool is_terminal;
  bool is_shown = false;  // a source of its console's layout

 private:
  void TakePiece(const LinePiece& piece, TakeLine take);

  asio::posix::stream_descriptor end_;
  bool is_waiting_ = false;
  LineCutter cutter_;
  std::string line_;  // of a line that came in several pieces
};

}  // namespace muster::agent

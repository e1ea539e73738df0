// What a LogPump owns. Private to log_pump.cc, which opens and closes attempts, and
// log_pump_streams.cc, which carries bytes from pipes to files and consoles while an attempt runs.
// Loop thread only.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/process/console_writer.h"
#include "agent/process/line_folding.h"
#include "agent/process/line_format.h"
#include "agent/process/log_pump.h"
#include "agent/process/output_file.h"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {

inline constexpr ConsoleStream kConsoleStreams[] = {ConsoleStream::kStdout, ConsoleStream::kStderr};
inline size_t Index(ConsoleStream stream) { return static_cast<size_t>(stream); }

struct LogPump::State {
  // One of the two streams of a worker.
  struct WorkerStream {
    StreamRoute route;
    std::optional<OutputFile> file;  // with kFile, its descriptor is the worker's alone
  };

  struct Worker {
    PumpedWorker who;
    std::string directory;
    std::string prefix;
    std::array<WorkerStream, 2> streams;
    OutputTail tail;
  };

  struct Pipe {
    Pipe(asio::io_context& loop, int id) : id(id), end(loop) {}
    const int id;
    ConsoleStream stream = ConsoleStream::kStdout;
    Worker* worker = nullptr;  // workers outlive their pipes: both go in CloseAttempt and
                               // OpenAttempt, pipes first
    asio::posix::stream_descriptor end;
    bool is_waiting = false;
    LineCutter cutter;
    MonoTime unfinished_since;
    std::string filter_line;  // of a line that came in several pieces; at most kLineBytesMax
  };

  State(asio::io_context& loop, LogPumpOptions options);

  absl::Status OpenWorker(const std::string& attempt_directory, Worker& worker, WorkerStreams& out);
  absl::Status OpenStream(Worker& worker, ConsoleStream stream, UniqueFd& out);
  absl::Status OpenPipe(Worker& worker, ConsoleStream stream, UniqueFd& out);
  absl::Status OpenFilteredFiles();
  void StartFolding();

  void WaitFor(Pipe& pipe);
  void OnReadable(int id);
  // False at the end of the stream. Reads no more than `bytes_max`, and stops when the pipe is
  // empty.
  bool Read(Pipe& pipe, size_t bytes_max);
  void Deliver(Pipe& pipe, absl::string_view bytes);
  void Drain(int id);
  void EndStream(int id);
  void ResumeReading();

  void Place(Pipe& pipe, const LinePiece& piece);
  void Filter(Pipe& pipe, const LinePiece& piece);
  void PlaceFolded(const std::vector<FoldedLine>& lines);
  void WriteOut();

  void ArmTimer(MonoTime deadline);
  void OnTimer();
  MonoTime FlushDeadline(const Pipe& pipe) const {
    return pipe.unfinished_since + options.flush_after;
  }

  const Worker* FindWorker(LocalRank local_rank) const;
  std::vector<int> PipesOf(std::optional<LocalRank> local_rank) const;
  bool HasContentNow() const;

  // Constant after construction.
  const LogPumpOptions options;
  asio::io_context& loop;
  // Loop thread only.
  std::array<ConsoleWriter, 2> consoles;
  ConsoleRows rows;
  std::optional<LineFolder> folder;
  std::vector<std::unique_ptr<Worker>> workers;
  std::array<std::optional<OutputFile>, 2> filtered_files;
  std::string attempt_directory;
  std::map<int, Pipe> pipes;
  int next_pipe_id = 0;
  asio::steady_timer timer;
  MonoTime timer_at = MonoTime::InfiniteFuture();
  bool earlier_attempts_wrote = false;
  std::string buffer;                  // for read(2)
  std::array<std::string, 2> out;      // formatted, not yet written to the consoles
  std::array<std::string, 2> matched;  // likewise for the filtered files
  const std::shared_ptr<bool> alive =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent

// What a LogPump owns. Private to log_pump.cc, which opens and closes attempts, log_pump_open.cc,
// which gives workers their streams, and log_pump_streams.cc, which carries bytes from there to files
// and consoles while an attempt runs.
// Loop thread only.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/process/console_layout.h"
#include "agent/process/console_writer.h"
#include "agent/process/file_aside.h"
#include "agent/process/line_format.h"
#include "agent/process/log_pump.h"
#include "agent/process/output_file.h"
#include "agent/process/terminal_input.h"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {

inline constexpr ConsoleStream kConsoleStreams[] = {ConsoleStream::kStdout, ConsoleStream::kStderr};
inline size_t Index(ConsoleStream stream) { return static_cast<size_t>(stream); }

std::string ErrorFileIn(const std::string& worker_directory);

struct LogPump::State {
  // One of the two streams of a worker.
  struct WorkerStream {
    StreamRoute route;
    std::string prefix;
    std::optional<OutputFile> file;  // with kFile, its descriptor is the worker's alone
  };

  struct Worker {
    PumpedWorker who;
    std::string directory;
    std::array<WorkerStream, 2> streams;
    OutputTail tail;
  };

  // A pipe, or a pseudo terminal, which may carry both streams of its worker.
  struct Pipe {
    Pipe(asio::io_context& loop, int id) : id(id), end(loop) {}
    const int id;
    ConsoleStream stream = ConsoleStream::kStdout;
    // Workers outlive their pipes: both go in CloseAttempt and OpenAttempt, pipes first.
    Worker* worker = nullptr;
    asio::posix::stream_descriptor end;
    bool is_terminal = false;
    bool is_waiting = false;
    LineCutter filter_cutter;
    std::string filter_line;  // of a line that came in several pieces; at most kLineBytesMax
  };

  // Where workers' lines and ours meet: standard output, standard error, or one for both if they
  // are one file.
  struct Console {
    Console(asio::io_context& loop, int fd, const char* name, std::function<void()> on_drained);
    const int fd;
    const bool is_terminal;
    const bool is_screen;  // a terminal in which drawing has a sense
    ConsoleWriter writer;
    enum class Kind { kPlain, kTerminal, kPassThrough };
    Kind kind = Kind::kPlain;
    ConsoleOptions options;
    std::unique_ptr<ConsoleLayout> layout;
  };

  State(asio::io_context& loop, LogPumpOptions options);

  Console& console_of(ConsoleStream stream) { return *consoles[console_index[Index(stream)]]; }
  ConsoleFacts FactsOf(ConsoleStream stream);
  void LayOutConsoles();
  void LayOut(Console& console, Console::Kind kind, int num_ranks);

  void Route(const std::vector<PumpedWorker>& who);
  // What is made aside, and its directories.
  struct LogPaths {
    std::vector<std::string> directories;
    std::vector<std::string> files;
  };
  LogPaths ListPaths() const;
  static std::string LogFileOf(const Worker& worker, ConsoleStream stream);
  std::string HookPath() const { return attempt_directory + "/hook.log"; }
  std::string FilteredPath(ConsoleStream stream) const;
  bool IsFiltered(ConsoleStream stream) const;
  // By path. Runs aside.
  using OpenFiles = std::map<std::string, OutputFile>;
  static absl::StatusOr<OpenFiles> MakeFiles(const LogPaths& paths,
                                             const std::shared_ptr<FileWriter>& writer);
  absl::StatusOr<std::vector<WorkerStreams>> OpenWorkers(OpenFiles files);
  absl::Status OpenWorker(Worker& worker, OpenFiles& files, WorkerStreams& out);
  absl::Status OpenStream(Worker& worker, ConsoleStream stream, OpenFiles& files,
                          WorkerStreams& out);
  absl::Status OpenPipe(Worker& worker, ConsoleStream stream, UniqueFd& out);
  bool OpenTerminal(Worker& worker, ConsoleStream stream, UniqueFd& out);
  bool ShareTerminal(Worker& worker, WorkerStreams& out);
  void GiveInput(WorkerStreams& out);
  absl::Status Watch(Worker& worker, ConsoleStream stream, UniqueFd end, bool is_terminal);
  WindowSize WorkerWindow(const Worker& worker, ConsoleStream stream);

  void WaitFor(Pipe& pipe);
  void OnReadable(int id);
  // False at the end of the stream. Reads no more than `bytes_max`, and stops when the pipe is
  // empty.
  bool Read(Pipe& pipe, size_t bytes_max);
  void Deliver(Pipe& pipe, absl::string_view bytes);
  void Drain(int id);
  void EndStream(int id);
  void ResumeReading();

  void Filter(Pipe& pipe, const LinePiece& piece);
  void WriteOut();

  void ArmTimer();
  void OnTimer();

  const Worker* FindWorker(LocalRank local_rank) const;
  std::vector<int> PipesOf(std::optional<LocalRank> local_rank) const;

  // Constant after construction.
  const LogPumpOptions options;
  asio::io_context& loop;
  // Loop thread only.
  std::vector<std::unique_ptr<Console>> consoles;  // one or two
  std::array<size_t, 2> console_index{};           // of each stream
  std::vector<std::unique_ptr<Worker>> workers;
  const std::shared_ptr<FileWriter> files = std::make_shared<FileWriter>();
  FileAside aside;
  uint64_t opening = 0;  // the attempt that is being opened, or that was last; grows
  std::array<std::optional<OutputFile>, 2> filtered_files;
  std::optional<OutputFile> hook_file;
  std::string attempt_directory;
  std::map<int, Pipe> pipes;
  int next_pipe_id = 0;
  std::optional<TerminalInput> input;  // of the only worker; goes before its pipe
  asio::steady_timer timer;
  MonoTime timer_at = MonoTime::InfiniteFuture();
  std::string buffer;                  // for read(2)
  std::array<std::string, 2> matched;  // formatted, not yet written to the filtered files
  const std::shared_ptr<bool> alive =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent

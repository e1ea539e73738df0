// What a LogPump owns. Private to log_pump.cc, which opens and closes attempts, log_pump_routes.cc,
// which decides where their streams go, log_pump_open.cc, which gives workers their streams, and
// log_pump_streams.cc, which carries bytes from there to files and consoles while an attempt runs.
// Loop thread only.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/console/attempt_files.h"
#include "agent/console/consoles.h"
#include "agent/console/line_format.h"
#include "agent/console/log_pump.h"
#include "agent/console/output_file.h"
#include "agent/console/terminal_input.h"
#include "agent/process/aside.h"
#include "agent/process/parked_descriptors.h"
#include "asio/posix/stream_descriptor.hpp"

namespace muster::agent {

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
    bool is_open = false;     // its process has its streams
    bool takes_keys = false;  // its standard input is its terminal
  };

  // What an attempt that is being opened makes of one worker.
  struct WorkerPlan {
    PumpedWorker who;
    std::array<StreamRoute, 2> routes;
    std::array<std::string, 2> prefixes;
  };

  // A pipe or a pseudo terminal, which may carry both streams of its worker.
  struct Pipe {
    Pipe(asio::io_context& loop, int id) : id(id), end(loop) {}
    const int id;
    ConsoleStream stream = ConsoleStream::kStdout;
    // Workers outlive their pipes: both go in CloseAttempt and OpenAttempt, pipes first; or, of a
    // kept worker, neither.
    Worker* worker = nullptr;
    asio::posix::stream_descriptor end;
    bool is_terminal = false;
    bool is_shown = false;  // a source of its console's layout
    bool is_waiting = false;
    LineCutter filter_cutter;
    std::string filter_line;  // of a line that came in several pieces; at most kLineBytesMax
  };

  State(asio::io_context& loop, LogPumpOptions options);

  bool IsOn(const Console& console, const Pipe& pipe) {
    return &consoles.of(pipe.stream) == &console;
  }
  ConsoleFacts FactsOf(ConsoleStream stream);
  void LayOutConsoles();
  void LayOut(Console& console, Console::Kind kind, int num_ranks);
  void Show(Pipe& pipe);
  void ResizeTerminals();

  void ReplaceWorkers(const std::vector<PumpedWorker>& who);
  // Shapes: plans[workers.size()], in their order; so below.
  std::vector<WorkerPlan> PlanWorkers(const std::vector<PumpedWorker>& who);
  void Follow(Worker& worker, const WorkerPlan& plan);
  void FollowKept(const std::vector<WorkerPlan>& plans);
  void CloseWorker(Worker& worker);
  // What is made aside, and its directories.
  struct LogPaths {
    std::vector<std::string> directories;
    std::vector<std::string> files;
    std::optional<std::pair<std::string, std::string>> about;  // a path and its text
    std::vector<std::string> former_errors;                    // of earlier rounds
    std::string former_error_name;                             // that they get
  };
  LogPaths ListPaths(const std::vector<WorkerPlan>& plans) const;
  static std::string LogFileOf(const Worker& worker, ConsoleStream stream);
  std::string About(const std::vector<WorkerPlan>& plans) const;
  static void WriteAbout(const UniqueFd& file, const std::pair<std::string, std::string>& about);
  // Files keyed by path. MakeFiles runs aside.
  using OpenFiles = std::map<std::string, OutputFile>;
  static absl::StatusOr<OpenFiles> MakeFiles(const LogFolder& folder, const LogPaths& paths,
                                             const std::shared_ptr<FileWriter>& writer);
  absl::StatusOr<std::vector<WorkerStreams>> OpenWorkers(const std::vector<WorkerPlan>& plans,
                                                         OpenFiles files);
  absl::Status OpenWorker(Worker& worker, OpenFiles& files, WorkerStreams& out);
  absl::Status OpenStream(Worker& worker, ConsoleStream stream, OpenFiles& files,
                          WorkerStreams& out);
  absl::Status OpenPipe(Worker& worker, ConsoleStream stream, UniqueFd& out);
  bool OpenTerminal(Worker& worker, ConsoleStream stream, UniqueFd& out);
  bool ShareStream(Worker& worker, WorkerStreams& out);
  Pipe* TerminalOf(const Worker& worker);
  void GiveInput(Worker& worker, WorkerStreams& out);
  void PlaceInput();
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
  void EndFilterLine(Pipe& pipe);
  void WriteOut();

  const Worker* FindWorker(LocalRank local_rank) const;
  std::vector<int> PipesOf(LocalRank local_rank) const;

  // Constant after construction.
  const LogPumpOptions options;
  const LogFolder folder;
  asio::io_context& loop;
  // Loop thread only.
  Consoles consoles;
  std::vector<std::unique_ptr<Worker>> workers;
  const std::shared_ptr<FileWriter> files = std::make_shared<FileWriter>();
  Aside aside;
  uint64_t opening = 0;  // the attempt that is being opened, or that was last; grows
  AttemptFiles attempt;  // while another is being opened, kept workers' filtered lines go on
  std::map<int, Pipe> pipes;
  ParkedDescriptors workers_ends;  // of the streams, until they are taken
  int next_pipe_id = 0;
  std::optional<TerminalInput> input;  // of the only worker; goes before its pipe
  std::string buffer;                  // for read(2)
  const std::shared_ptr<bool> alive =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent

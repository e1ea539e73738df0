// LogPump: what workers get for their standard streams, and how the consoles are laid out for them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/log_pump_state.h"
#include "agent/process/pty.h"
#include "agent/process/worker_screen.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr int kPipeBytes = 256 * 1024;
constexpr char kDefaultRole[] = "default";  // torchrun's; not a role that was given
constexpr int kWorkerColumnsMin = 10;

const char* FileName(ConsoleStream stream) {
  return stream == ConsoleStream::kStdout ? "stdout.log" : "stderr.log";
}

}  // namespace

std::string ErrorFileIn(const std::string& worker_directory) {
  return worker_directory + "/error.json";
}

std::string LogPump::State::LogFileOf(const Worker& worker, ConsoleStream stream) {
  return absl::StrCat(worker.directory, "/", FileName(stream));
}

ConsoleFacts LogPump::State::FactsOf(ConsoleStream stream) {
  return {.is_terminal = console_of(stream).is_terminal, .has_role = options.role != kDefaultRole};
}

void LogPump::State::LayOutConsoles() {
  for (const std::unique_ptr<Console>& console : consoles) {
    std::set<Rank> ranks;
    bool has_prefixes = false;
    for (const std::unique_ptr<Worker>& worker : workers) {
      for (const ConsoleStream stream : kConsoleStreams) {
        const StreamRoute& route = worker->streams[Index(stream)].route;
        if (&console_of(stream) != console.get() || !route.to_console) continue;
        ranks.insert(worker->who.rank);
        has_prefixes = has_prefixes || route.has_prefix;
      }
    }
    Console::Kind kind = Console::Kind::kPlain;
    if (console->is_screen && ranks.size() == 1 && !has_prefixes) {
      kind = Console::Kind::kPassThrough;
    } else if (console->is_screen && options.cursor_moves) {
      kind = Console::Kind::kTerminal;
    }
    LayOut(*console, kind, static_cast<int>(ranks.size()));
  }
}

// A layout that fits stays: it knows what ends the console.
void LogPump::State::LayOut(Console& console, Console::Kind kind, int num_ranks) {
  const ConsoleOptions wanted{.host = options.host,
                              .partial_line_wait = options.partial_line_wait,
                              .fold = options.logs.fold,
                              .fold_window = options.fold_window,
                              .num_ranks = num_ranks};
  if (console.kind == kind && console.options == wanted) return;
  console.kind = kind;
  console.options = wanted;
  switch (kind) {
    case Console::Kind::kPlain:
      console.layout = MakePlainLayout(wanted);
      return;
    case Console::Kind::kTerminal:
      console.layout = MakeTerminalLayout(wanted, GetWindowSize(console.fd));
      return;
    case Console::Kind::kPassThrough:
      console.layout = MakePassThroughLayout();
      return;
  }
}

void LogPump::State::Route(const std::vector<PumpedWorker>& who) {
  workers.clear();
  for (const PumpedWorker& one : who) {
    auto worker = std::make_unique<Worker>();
    worker->who = one;
    worker->directory = absl::StrCat(attempt_directory, "/", one.local_rank.value());
    workers.push_back(std::move(worker));
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    const ConsoleFacts facts = FactsOf(stream);
    const std::vector<StreamRoute> routes = DecideRoutes(options.logs, stream, who, facts);
    for (size_t i = 0; i < routes.size(); ++i) {
      WorkerStream& its = workers[i]->streams[Index(stream)];
      its.route = routes[i];
      its.prefix = MakeLinePrefix(PrefixTemplate(options.logs, stream, who[i], facts),
                                  {options.host, options.role, who[i].rank, who[i].local_rank});
    }
  }
}

bool LogPump::State::IsFiltered(ConsoleStream stream) const {
  return std::any_of(workers.begin(), workers.end(), [&](const std::unique_ptr<Worker>& worker) {
    return worker->streams[Index(stream)].route.to_filtered;
  });
}

std::string LogPump::State::FilteredPath(ConsoleStream stream) const {
  return absl::StrCat(attempt_directory, "/filtered_", FileName(stream));
}

LogPump::State::LogPaths LogPump::State::ListPaths() const {
  LogPaths paths;
  paths.directories.push_back(attempt_directory);
  for (const std::unique_ptr<Worker>& worker : workers) {
    paths.directories.push_back(worker->directory);
    for (const ConsoleStream stream : kConsoleStreams) {
      if (worker->streams[Index(stream)].route.to_file)
        paths.files.push_back(LogFileOf(*worker, stream));
    }
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    if (IsFiltered(stream)) paths.files.push_back(FilteredPath(stream));
  }
  if (options.has_hook) paths.files.push_back(HookPath());
  return paths;
}

absl::StatusOr<LogPump::State::OpenFiles> LogPump::State::MakeFiles(
    const LogPaths& paths, const std::shared_ptr<FileWriter>& writer) {
  for (const std::string& directory : paths.directories) {
    MUSTER_RETURN_IF_ERROR(MakeLogDirectory(directory));
  }
  OpenFiles files;
  for (const std::string& path : paths.files) {
    MUSTER_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Open(path, writer));
    files.emplace(path, std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<WorkerStreams>> LogPump::State::OpenWorkers(OpenFiles files) {
  for (const ConsoleStream stream : kConsoleStreams) {
    if (IsFiltered(stream))
      filtered_files[Index(stream)] = std::move(files.at(FilteredPath(stream)));
  }
  if (options.has_hook) hook_file = std::move(files.at(HookPath()));
  std::vector<WorkerStreams> streams(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(OpenWorker(*workers[i], files, streams[i]));
  }
  return streams;
}

absl::Status LogPump::State::OpenWorker(Worker& worker, OpenFiles& files, WorkerStreams& out) {
  out.directory = worker.directory;
  out.error_file = ErrorFileIn(worker.directory);
  MUSTER_RETURN_IF_ERROR(OpenStream(worker, ConsoleStream::kStdout, files, out));
  MUSTER_RETURN_IF_ERROR(OpenStream(worker, ConsoleStream::kStderr, files, out));
  GiveInput(out);
  return absl::OkStatus();
}

absl::Status LogPump::State::OpenStream(Worker& worker, ConsoleStream stream, OpenFiles& files,
                                        WorkerStreams& out) {
  WorkerStream& state = worker.streams[Index(stream)];
  UniqueFd& fd = stream == ConsoleStream::kStdout ? out.stdout_fd : out.stderr_fd;
  if (state.route.to_file) state.file = std::move(files.at(LogFileOf(worker, stream)));
  switch (state.route.way) {
    case StreamRoute::Way::kFile:
      fd = state.file->TakeDescriptor();
      return absl::OkStatus();
    case StreamRoute::Way::kTerminal:
      if (stream == ConsoleStream::kStderr && ShareTerminal(worker, out)) return absl::OkStatus();
      if (OpenTerminal(worker, stream, fd)) return absl::OkStatus();
      break;  // none left: a pipe will do
    case StreamRoute::Way::kPipe:
      break;
  }
  return OpenPipe(worker, stream, fd);
}

// Both streams that end on one terminal go through one, as they would without us: that keeps their
// order.
bool LogPump::State::ShareTerminal(Worker& worker, WorkerStreams& out) {
  const WorkerStream& first = worker.streams[Index(ConsoleStream::kStdout)];
  const WorkerStream& second = worker.streams[Index(ConsoleStream::kStderr)];
  const bool alike = consoles.size() == 1 && first.route == second.route &&
                     !first.route.to_filtered && first.prefix == second.prefix;
  const bool first_has_one = std::any_of(pipes.begin(), pipes.end(), [&](const auto& entry) {
    return entry.second.worker == &worker && entry.second.is_terminal;
  });
  if (!alike || !first_has_one) return false;
  out.stderr_fd.reset(::fcntl(out.stdout_fd.get(), F_DUPFD_CLOEXEC, 3));
  return static_cast<bool>(out.stderr_fd);
}

bool LogPump::State::OpenTerminal(Worker& worker, ConsoleStream stream, UniqueFd& out) {
  termios modes;
  const bool known = TerminalInput::ReadModes(options.console_stdin, &modes);
  std::optional<Pty> pty = OpenPty(WorkerWindow(worker, stream), known ? &modes : nullptr);
  if (!pty || !Watch(worker, stream, std::move(pty->ours), /*is_terminal=*/true).ok()) return false;
  out = std::move(pty->worker);
  return true;
}

absl::Status LogPump::State::OpenPipe(Worker& worker, ConsoleStream stream, UniqueFd& out) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return LogPathError("make a pipe for", worker.directory, errno);
  UniqueFd read_end(ends[0]);
  out.reset(ends[1]);
  ::fcntl(read_end.get(), F_SETPIPE_SZ, kPipeBytes);  // as large as the system lets us
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  return Watch(worker, stream, std::move(read_end), /*is_terminal=*/false);
}

absl::Status LogPump::State::Watch(Worker& worker, ConsoleStream stream, UniqueFd end,
                                   bool is_terminal) {
  const int id = next_pipe_id++;
  Pipe& pipe = pipes.try_emplace(id, loop, id).first->second;
  pipe.stream = stream;
  pipe.worker = &worker;
  pipe.is_terminal = is_terminal;
  asio::error_code error;
  pipe.end.assign(end.get(), error);
  if (error) {
    pipes.erase(id);
    return LogPathError("watch the output of", worker.directory, error.value());
  }
  end.release();
  const WorkerStream& state = worker.streams[Index(stream)];
  if (state.route.to_console) {
    console_of(stream).layout->Open(
        {id, worker.who.rank, state.route.has_prefix ? state.prefix : ""});
  }
  WaitFor(pipe);
  return absl::OkStatus();
}

// With one worker the terminal's input is that worker's, if its output is there too; several inherit
// the terminal, as under torchrun.
void LogPump::State::GiveInput(WorkerStreams& out) {
  if (workers.size() != 1 || !IsTerminal(options.console_stdin)) return;
  for (auto& [id, pipe] : pipes) {
    if (!pipe.is_terminal || pipe.stream != ConsoleStream::kStdout) continue;
    out.stdin_fd.reset(::fcntl(out.stdout_fd.get(), F_DUPFD_CLOEXEC, 3));
    if (out.stdin_fd) input.emplace(loop, options.console_stdin, pipe.end.native_handle());
    return;
  }
}

WindowSize LogPump::State::WorkerWindow(const Worker& worker, ConsoleStream stream) {
  const WorkerStream& state = worker.streams[Index(stream)];
  WindowSize size = GetWindowSize(console_of(stream).fd);
  if (!state.route.has_prefix) return size;
  size.columns = std::max(kWorkerColumnsMin, size.columns - ColumnsOf(state.prefix));
  return size;
}

}  // namespace muster::agent

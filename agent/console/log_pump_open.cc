// LogPump: what workers get for their standard streams.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_pump_state.h"
#include "agent/console/pty.h"
#include "agent/console/worker_screen.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

constexpr int kPipeBytes = 256 * 1024;
constexpr int kWorkerColumnsMin = 10;

}  // namespace

std::string ErrorFileIn(const std::string& worker_directory) {
  return worker_directory + "/error.json";
}

std::string LogPump::State::LogFileOf(const Worker& worker, ConsoleStream stream) {
  return absl::StrCat(worker.directory, "/", LogFileName(stream));
}

LogPump::State::LogPaths LogPump::State::ListPaths(const std::vector<WorkerPlan>& plans) const {
  LogPaths paths;
  paths.directories.push_back(attempt.directory());
  paths.former_error_name = absl::StrCat(
      "error_before_", attempt.directory().substr(attempt.directory().rfind('/') + 1), ".json");
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].who.is_kept) {
      paths.former_errors.push_back(ErrorFileIn(workers[i]->directory));
      continue;
    }
    paths.directories.push_back(workers[i]->directory);
    for (const ConsoleStream stream : kConsoleStreams) {
      if (plans[i].routes[Index(stream)].to_file)
        paths.files.push_back(LogFileOf(*workers[i], stream));
    }
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    const bool is_filtered = absl::c_any_of(
        plans, [&](const WorkerPlan& plan) { return plan.routes[Index(stream)].to_filtered; });
    if (is_filtered) paths.files.push_back(attempt.FilteredPath(stream));
  }
  if (options.has_hook) paths.files.push_back(attempt.HookPath());
  if (!options.logs.log_dir.empty()) paths.about = {attempt.AboutPath(), About(plans)};
  return paths;
}

std::string LogPump::State::About(const std::vector<WorkerPlan>& plans) const {
  nlohmann::ordered_json about = {{"schema", 1}, {"node", options.host}};
  for (const WorkerPlan& plan : plans) about["ranks"].push_back(plan.who.rank.value());
  return about.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// The job goes on without it.
void LogPump::State::WriteAbout(const UniqueFd& file,
                                const std::pair<std::string, std::string>& about) {
  const auto& [path, text] = about;
  const ssize_t put = ::write(file.get(), text.data(), text.size());
  if (put == static_cast<ssize_t>(text.size())) return;
  log::Write(log::Level::kWarning, "log_file_failed",
             absl::StrCat(LogPathError("write", path, put < 0 ? errno : ENOSPC).message(),
                          "; nothing there says whose logs these are"),
             {{"path", path}});
}

absl::StatusOr<LogPump::State::OpenFiles> LogPump::State::MakeFiles(
    const LogFolder& folder, const LogPaths& paths, const std::shared_ptr<FileWriter>& writer) {
  for (const std::string& directory : paths.directories) {
    MUSTER_RETURN_IF_ERROR(folder.OpenDirectory(directory).status());
  }
  OpenFiles files;
  for (const std::string& path : paths.files) {
    MUSTER_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Open(folder, path, writer));
    files.emplace(path, std::move(file));
  }
  for (const std::string& path : paths.former_errors) folder.Rename(path, paths.former_error_name);
  if (paths.about) {
    MUSTER_ASSIGN_OR_RETURN(const UniqueFd file,
                            folder.OpenFile(paths.about->first, O_WRONLY | O_CREAT | O_TRUNC));
    WriteAbout(file, *paths.about);
  }
  return files;
}

// What can fail comes first: until then kept workers are left as they are.
absl::StatusOr<std::vector<WorkerStreams>> LogPump::State::OpenWorkers(
    const std::vector<WorkerPlan>& plans, OpenFiles files) {
  std::vector<WorkerStreams> streams(workers.size());
  workers_ends.Clear();
  for (size_t i = 0; i < workers.size(); ++i) {
    streams[i].directory = workers[i]->directory;
    streams[i].error_file = ErrorFileIn(workers[i]->directory);
    if (plans[i].who.is_kept) continue;
    Follow(*workers[i], plans[i]);
    MUSTER_RETURN_IF_ERROR(OpenWorker(*workers[i], files, streams[i]));
  }
  FollowKept(plans);
  attempt.Open(files);
  LayOutConsoles();
  PlaceInput();
  return streams;
}

absl::Status LogPump::State::OpenWorker(Worker& worker, OpenFiles& files, WorkerStreams& out) {
  MUSTER_RETURN_IF_ERROR(OpenStream(worker, ConsoleStream::kStdout, files, out));
  MUSTER_RETURN_IF_ERROR(OpenStream(worker, ConsoleStream::kStderr, files, out));
  GiveInput(worker, out);
  worker.is_open = true;
  std::vector<UniqueFd> ends;
  ends.push_back(std::move(out.stdout_fd));
  ends.push_back(std::move(out.stderr_fd));
  if (out.stdin_fd) ends.push_back(std::move(out.stdin_fd));
  workers_ends.Park(std::move(ends));
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
      if (stream == ConsoleStream::kStderr && ShareStream(worker, out)) return absl::OkStatus();
      if (OpenTerminal(worker, stream, fd)) return absl::OkStatus();
      break;  // none left: a pipe will do
    case StreamRoute::Way::kPipe:
      if (stream == ConsoleStream::kStderr && ShareStream(worker, out)) return absl::OkStatus();
      break;
  }
  return OpenPipe(worker, stream, fd);
}

// Both streams that end on one console, and nowhere else, go through one pipe or terminal, as they
// would without us: that keeps their order. Nobody sees the order of what is not shown.
bool LogPump::State::ShareStream(Worker& worker, WorkerStreams& out) {
  const WorkerStream& first = worker.streams[Index(ConsoleStream::kStdout)];
  const WorkerStream& second = worker.streams[Index(ConsoleStream::kStderr)];
  const bool alike = consoles.all().size() == 1 && first.route == second.route &&
                     !first.route.to_file && !first.route.to_filtered &&
                     first.prefix == second.prefix;
  if (!alike || (!first.route.to_console && TerminalOf(worker) == nullptr)) return false;
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
  WaitFor(pipe);
  return absl::OkStatus();
}

// That its standard output is; null: none is.
LogPump::State::Pipe* LogPump::State::TerminalOf(const Worker& worker) {
  for (auto& [id, pipe] : pipes) {
    if (pipe.worker == &worker && pipe.is_terminal && pipe.stream == ConsoleStream::kStdout)
      return &pipe;
  }
  return nullptr;
}

// With one worker the terminal's input is that worker's, if its output is there too; several
// inherit the terminal, as under torchrun.
void LogPump::State::GiveInput(Worker& worker, WorkerStreams& out) {
  if (workers.size() != 1 || !IsTerminal(options.console_stdin)) return;
  if (TerminalOf(worker) == nullptr ||
      !worker.streams[Index(ConsoleStream::kStdout)].route.to_console)
    return;
  out.stdin_fd.reset(::fcntl(out.stdout_fd.get(), F_DUPFD_CLOEXEC, 3));
  worker.takes_keys = static_cast<bool>(out.stdin_fd);
}

// A kept worker that inherited the terminal reads from it itself. One that has got others beside it
// gets no more keys: the others inherit the terminal.
void LogPump::State::PlaceInput() {
  const Worker* const only = workers.size() == 1 ? workers.front().get() : nullptr;
  const bool takes_keys = only != nullptr && only->takes_keys &&
                          only->streams[Index(ConsoleStream::kStdout)].route.to_console;
  Pipe* const terminal = takes_keys ? TerminalOf(*only) : nullptr;
  if (terminal == nullptr) return input.reset();
  if (input && input->worker() == terminal->end.native_handle()) return;
  input.emplace(loop, options.console_stdin, terminal->end.native_handle());
}

WindowSize LogPump::State::WorkerWindow(const Worker& worker, ConsoleStream stream) {
  const WorkerStream& state = worker.streams[Index(stream)];
  WindowSize size = GetWindowSize(consoles.of(stream).fd);
  if (!state.route.has_prefix) return size;
  size.columns = std::max(kWorkerColumnsMin, size.columns - ColumnsOf(state.prefix));
  return size;
}

}  // namespace muster::agent

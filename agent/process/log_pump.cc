#include "agent/process/log_pump.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/log_pump_state.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kPipeBytes = 256 * 1024;
constexpr size_t kTailBytes = 4096;  // read of a file

const char* FileName(ConsoleStream stream) {
  return stream == ConsoleStream::kStdout ? "stdout.log" : "stderr.log";
}

bool AreOneFile(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

bool HasContent(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
}

}  // namespace

LogPump::State::State(asio::io_context& event_loop, LogPumpOptions pump_options)
    : options(std::move(pump_options)),
      loop(event_loop),
      consoles{ConsoleWriter(
                   loop, {options.console_stdout, "standard output", [this] { ResumeReading(); }}),
               ConsoleWriter(
                   loop, {options.console_stderr, "standard error", [this] { ResumeReading(); }})},
      rows(AreOneFile(options.console_stdout, options.console_stderr)),
      timer(loop),
      buffer(kReadBytes, '\0') {}

LogPump::LogPump(asio::io_context& loop, LogPumpOptions options)
    : state_(std::make_unique<State>(loop, std::move(options))) {}
LogPump::~LogPump() = default;

absl::StatusOr<std::vector<WorkerStreams>> LogPump::OpenAttempt(
    int attempt, const std::vector<PumpedWorker>& workers) {
  CloseAttempt();
  State& state = *state_;
  state.workers.clear();
  state.attempt_directory = absl::StrCat(state.options.run_directory, "/attempt_", attempt);
  MUSTER_RETURN_IF_ERROR(MakeLogDirectory(state.attempt_directory));
  for (const PumpedWorker& who : workers) {
    auto worker = std::make_unique<State::Worker>();
    worker->who = who;
    worker->prefix =
        MakeLinePrefix(state.options.logs.line_prefix_template,
                       {state.options.host, state.options.role, who.rank, who.local_rank});
    state.workers.push_back(std::move(worker));
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    const std::vector<StreamRoute> routes = DecideRoutes(state.options.logs, stream, workers);
    for (size_t i = 0; i < routes.size(); ++i)
      state.workers[i]->streams[Index(stream)].route = routes[i];
  }
  state.StartFolding();
  absl::Status status = state.OpenFilteredFiles();
  std::vector<WorkerStreams> streams(workers.size());
  for (size_t i = 0; i < workers.size() && status.ok(); ++i) {
    status = state.OpenWorker(state.attempt_directory, *state.workers[i], streams[i]);
  }
  if (status.ok()) return streams;
  CloseAttempt();
  return status;
}

void LogPump::State::StartFolding() {
  if (!options.logs.fold) return;
  const auto reaches_console = [](const std::unique_ptr<Worker>& worker) {
    return worker->streams[0].route.to_console || worker->streams[1].route.to_console;
  };
  const int num_ranks =
      static_cast<int>(std::count_if(workers.begin(), workers.end(), reaches_console));
  folder.emplace(LineFolder::Options{.window = options.flush_after, .num_ranks = num_ranks});
}

absl::Status LogPump::State::OpenFilteredFiles() {
  for (const ConsoleStream stream : kConsoleStreams) {
    const bool any =
        std::any_of(workers.begin(), workers.end(), [&](const std::unique_ptr<Worker>& worker) {
          return worker->streams[Index(stream)].route.to_filtered;
        });
    if (!any) continue;
    absl::StatusOr<OutputFile> file =
        OutputFile::Open(absl::StrCat(attempt_directory, "/filtered_", FileName(stream)));
    if (!file.ok()) return file.status();
    filtered_files[Index(stream)] = *std::move(file);
  }
  return absl::OkStatus();
}

absl::Status LogPump::State::OpenWorker(const std::string& directory, Worker& worker,
                                        WorkerStreams& out) {
  worker.directory = absl::StrCat(directory, "/", worker.who.local_rank.value());
  MUSTER_RETURN_IF_ERROR(MakeLogDirectory(worker.directory));
  out.directory = worker.directory;
  out.error_file = absl::StrCat(worker.directory, "/error.json");
  MUSTER_RETURN_IF_ERROR(OpenStream(worker, ConsoleStream::kStdout, out.stdout_fd));
  return OpenStream(worker, ConsoleStream::kStderr, out.stderr_fd);
}

absl::Status LogPump::State::OpenStream(Worker& worker, ConsoleStream stream, UniqueFd& out) {
  WorkerStream& state = worker.streams[Index(stream)];
  if (state.route.to_file) {
    absl::StatusOr<OutputFile> file =
        OutputFile::Open(absl::StrCat(worker.directory, "/", FileName(stream)));
    if (!file.ok()) return file.status();
    state.file = *std::move(file);
  }
  switch (state.route.way) {
    case StreamRoute::Way::kInherit:
      return absl::OkStatus();
    case StreamRoute::Way::kFile:
      out = state.file->TakeDescriptor();
      return absl::OkStatus();
    case StreamRoute::Way::kPipe:
      break;
  }
  return OpenPipe(worker, stream, out);
}

absl::Status LogPump::State::OpenPipe(Worker& worker, ConsoleStream stream, UniqueFd& out) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return LogPathError("make a pipe for", worker.directory, errno);
  UniqueFd read_end(ends[0]);
  out.reset(ends[1]);
  ::fcntl(read_end.get(), F_SETPIPE_SZ, kPipeBytes);  // as large as the system lets us
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const int id = next_pipe_id++;
  Pipe& pipe = pipes.try_emplace(id, loop, id).first->second;
  pipe.stream = stream;
  pipe.worker = &worker;
  asio::error_code error;
  pipe.end.assign(read_end.get(), error);
  if (error) {
    pipes.erase(id);
    return LogPathError("watch the pipe of", worker.directory, error.value());
  }
  read_end.release();
  WaitFor(pipe);
  return absl::OkStatus();
}

std::vector<int> LogPump::State::PipesOf(std::optional<LocalRank> local_rank) const {
  std::vector<int> ids;
  for (const auto& [id, pipe] : pipes) {
    if (!local_rank || pipe.worker->who.local_rank == *local_rank) ids.push_back(id);
  }
  return ids;
}

void LogPump::DrainNow(LocalRank local_rank) {
  for (const int id : state_->PipesOf(local_rank)) state_->Drain(id);
}

void LogPump::CloseAttempt() {
  State& state = *state_;
  for (const int id : state.PipesOf(std::nullopt)) {
    state.Drain(id);
    state.EndStream(id);
  }
  if (state.folder) {
    state.PlaceFolded(state.folder->TakeAll());
    state.WriteOut();
  }
  if (!state.earlier_attempts_wrote) state.earlier_attempts_wrote = state.HasContentNow();
  for (std::optional<OutputFile>& file : state.filtered_files) {
    if (file) file->Close();
    file.reset();
  }
  for (const std::unique_ptr<State::Worker>& worker : state.workers) {
    for (State::WorkerStream& stream : worker->streams) {
      if (stream.file) stream.file->Close();
    }
  }
}

const LogPump::State::Worker* LogPump::State::FindWorker(LocalRank local_rank) const {
  for (const std::unique_ptr<Worker>& worker : workers) {
    if (worker->who.local_rank == local_rank) return worker.get();
  }
  return nullptr;
}

std::string LogPump::LastOutput(LocalRank local_rank, size_t max_bytes) {
  const State::Worker* const worker = state_->FindWorker(local_rank);
  if (worker == nullptr) return "";
  // Standard error last: of two files it says more about a failure.
  const auto file_tail = [&](ConsoleStream stream) -> std::string {
    const State::WorkerStream& state = worker->streams[Index(stream)];
    if (state.route.way != StreamRoute::Way::kFile || !state.file) return "";
    return ReadFileTail(state.file->path(), state.file->start_offset(), kTailBytes);
  };
  std::string output;
  for (const std::string& part : {file_tail(ConsoleStream::kStdout), worker->tail.bytes(),
                                  file_tail(ConsoleStream::kStderr)}) {
    if (!output.empty() && output.back() != '\n') output.push_back('\n');
    output += part;
  }
  return LastLines(output, max_bytes);
}

void LogPump::PrintLine(const std::string& line) {
  State& state = *state_;
  if (state.folder) state.PlaceFolded(state.folder->TakeAll());
  state.rows.PrintLine(ConsoleStream::kStderr, line, state.out[Index(ConsoleStream::kStderr)]);
  state.WriteOut();
}

bool LogPump::FlushConsole(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  bool all = true;
  for (ConsoleWriter& console : state_->consoles) all = console.Flush(deadline - MonoNow()) && all;
  return all;
}

bool LogPump::State::HasContentNow() const {
  for (const std::unique_ptr<Worker>& worker : workers) {
    if (HasContent(worker->directory + "/error.json")) return true;
    for (const WorkerStream& stream : worker->streams) {
      if (stream.file && HasContent(stream.file->path())) return true;
    }
  }
  return std::any_of(filtered_files.begin(), filtered_files.end(),
                     [](const auto& file) { return file && HasContent(file->path()); });
}

bool LogPump::HasWrittenFiles() const {
  return state_->earlier_attempts_wrote || state_->HasContentNow();
}

}  // namespace muster::agent

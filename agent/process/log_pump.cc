#include "agent/process/log_pump.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/log_pump_state.h"
#include "agent/process/pty.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kTailBytes = 4096;  // read of a file

bool AreOneFile(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

// What the loop can spare of a lease's seconds for a file system that is slow.
constexpr absl::Duration kFlushTime = absl::Milliseconds(200);

bool HasContent(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
}

bool HasContent(const OutputFile& file) { return file.has_appended() || HasContent(file.path()); }

}  // namespace

LogPump::State::Console::Console(asio::io_context& loop, int fd, const char* name,
                                 std::function<void()> on_drained)
    : fd(fd),
      is_terminal(IsTerminal(fd)),
      writer(loop, {fd, name, std::move(on_drained)}),
      layout(MakePlainLayout({})) {}

LogPump::State::State(asio::io_context& event_loop, LogPumpOptions pump_options)
    : options(std::move(pump_options)), loop(event_loop), timer(loop), buffer(kReadBytes, '\0') {
  const auto on_drained = [this] { ResumeReading(); };
  consoles.push_back(
      std::make_unique<Console>(loop, options.console_stdout, "standard output", on_drained));
  if (AreOneFile(options.console_stdout, options.console_stderr)) return;
  consoles.push_back(
      std::make_unique<Console>(loop, options.console_stderr, "standard error", on_drained));
  console_index = {0, 1};
}

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
    state.workers.push_back(std::move(worker));
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    const LogSpec& logs = state.options.logs;
    const ConsoleFacts facts = state.FactsOf(stream);
    const std::vector<StreamRoute> routes = DecideRoutes(logs, stream, workers, facts);
    for (size_t i = 0; i < routes.size(); ++i) {
      const PumpedWorker& who = workers[i];
      State::WorkerStream& its = state.workers[i]->streams[Index(stream)];
      its.route = routes[i];
      its.prefix =
          MakeLinePrefix(PrefixTemplate(logs, stream, who, facts),
                         {state.options.host, state.options.role, who.rank, who.local_rank});
    }
  }
  state.LayOutConsoles();
  absl::Status status = state.OpenFilteredFiles();
  std::vector<WorkerStreams> streams(workers.size());
  for (size_t i = 0; i < workers.size() && status.ok(); ++i) {
    status = state.OpenWorker(state.attempt_directory, *state.workers[i], streams[i]);
  }
  if (status.ok()) return streams;
  CloseAttempt();
  return status;
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
  state.input.reset();
  for (const int id : state.PipesOf(std::nullopt)) {
    state.Drain(id);
    state.EndStream(id);
  }
  state.files->Flush(kFlushTime);
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
  state_->console_of(ConsoleStream::kStderr).layout->PrintLine(line, MonoNow());
  state_->WriteOut();
}

void LogPump::OnWindowSize() {
  for (const std::unique_ptr<State::Console>& console : state_->consoles) {
    if (console->is_terminal) console->layout->Resize(GetWindowSize(console->fd));
  }
  for (auto& [id, pipe] : state_->pipes) {
    if (pipe.is_terminal)
      SetWindowSize(pipe.end.native_handle(), state_->WorkerWindow(*pipe.worker, pipe.stream));
  }
}

void LogPump::LeaveTerminal() {
  if (state_->input) state_->input->Suspend();
}

void LogPump::ReturnToTerminal() {
  if (state_->input) state_->input->Resume();
  OnWindowSize();
}

bool LogPump::FlushConsole(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  bool all = state_->files->Flush(at_most);
  for (const std::unique_ptr<State::Console>& console : state_->consoles)
    all = console->writer.Flush(deadline - MonoNow()) && all;
  return all;
}

bool LogPump::State::HasContentNow() const {
  for (const std::unique_ptr<Worker>& worker : workers) {
    if (HasContent(worker->directory + "/error.json")) return true;
    for (const WorkerStream& stream : worker->streams) {
      if (stream.file && HasContent(*stream.file)) return true;
    }
  }
  return std::any_of(filtered_files.begin(), filtered_files.end(),
                     [](const auto& file) { return file && HasContent(*file); });
}

bool LogPump::HasWrittenFiles() const {
  return state_->earlier_attempts_wrote || state_->HasContentNow();
}

}  // namespace muster::agent

#include "agent/console/log_pump.h"

#include <cerrno>
#include <initializer_list>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_pump_state.h"
#include "agent/console/pty.h"
#include "agent/process/runtime_directory.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kTailBytes = 16 * 1024;     // read of a file
constexpr size_t kLastWordsBytesMax = 2048;  // of a worker's output

// A file that a worker writes by itself; none without a path.
struct FileTail {
  std::string path;
  off_t start_offset = 0;
  std::string Read() const {
    return path.empty() ? "" : ReadFileTail(path, start_offset, kTailBytes);
  }
};

std::string JoinOutput(std::initializer_list<std::string> parts) {
  std::string output;
  for (const std::string& part : parts) {
    if (!output.empty() && output.back() != '\n') output.push_back('\n');
    output += part;
  }
  return LastWordsIn(output, kLastWordsBytesMax);
}

absl::Status NotAnswering(const std::string& directory, absl::Duration waited) {
  return absl::DeadlineExceededError(absl::StrCat(
      "could not make the log directory ", directory, " within ", absl::FormatDuration(waited),
      ": its file system does not answer; choose another place with --log_dir"));
}

}  // namespace

LogPump::State::State(asio::io_context& event_loop, LogPumpOptions pump_options)
    : options(std::move(pump_options)),
      folder(options.run_directory, options.topmost_directory),
      loop(event_loop),
      consoles(loop, options.console_stdout, options.console_stderr,
               {.host = options.host,
                .partial_line_wait = options.partial_line_wait,
                .fold = options.logs.fold,
                .fold_window = options.fold_window},
               [this] { ResumeReading(); }),
      aside(loop, files),
      buffer(kReadBytes, '\0') {}

LogPump::LogPump(asio::io_context& loop, LogPumpOptions options)
    : state_(std::make_unique<State>(loop, std::move(options))) {}
LogPump::~LogPump() = default;

void LogPump::OpenAttempt(int attempt, const std::vector<PumpedWorker>& workers,
                          absl::Duration at_most, OnOpen on_open) {
  std::vector<LocalRank> kept;
  for (const PumpedWorker& worker : workers) {
    if (worker.is_kept) kept.push_back(worker.local_rank);
  }
  CloseAttempt(kept);
  State& state = *state_;
  state.attempt.Begin(absl::StrCat(state.options.run_directory, "/attempt_", attempt));
  state.ReplaceWorkers(workers);
  std::vector<State::WorkerPlan> plans = state.PlanWorkers(workers);
  const State::LogPaths paths = state.ListPaths(plans);
  using Made = absl::StatusOr<State::OpenFiles>;
  state.aside.Run<Made>(
      at_most,
      [paths, folder = state.folder, files = state.files] {
        return State::MakeFiles(folder, paths, files);
      },
      [this, at_most, opening = state.opening, kept, plans = std::move(plans),
       on_open = std::move(on_open)](std::optional<Made> made) mutable {
        if (opening != state_->opening) return;  // closed meanwhile
        if (!made) made = NotAnswering(state_->attempt.directory(), at_most);
        absl::StatusOr<std::vector<WorkerStreams>> streams =
            made->ok() ? state_->OpenWorkers(plans, **std::move(made)) : made->status();
        if (!streams.ok()) CloseAttempt(kept);
        on_open(std::move(streams));
      });
}

absl::Status LogPump::TakeDescriptors(WorkerStreams& streams) {
  std::vector<UniqueFd> ends = state_->workers_ends.TakeNext();
  if (ends.size() < 2) return LogPathError("open the streams of", streams.directory, EMFILE);
  streams.stdout_fd = std::move(ends[0]);
  streams.stderr_fd = std::move(ends[1]);
  if (ends.size() > 2) streams.stdin_fd = std::move(ends[2]);
  return absl::OkStatus();
}

std::vector<int> LogPump::State::PipesOf(LocalRank local_rank) const {
  std::vector<int> ids;
  for (const auto& [id, pipe] : pipes) {
    if (pipe.worker->who.local_rank == local_rank) ids.push_back(id);
  }
  return ids;
}

void LogPump::DrainNow(LocalRank local_rank) {
  for (const int id : state_->PipesOf(local_rank)) state_->Drain(id);
}

void LogPump::State::CloseWorker(Worker& worker) {
  for (const int id : PipesOf(worker.who.local_rank)) {
    Drain(id);
    EndStream(id);
  }
  for (WorkerStream& stream : worker.streams) {
    if (stream.file) stream.file->Close();  // its path is asked for until the next attempt
  }
  worker.is_open = false;
}

void LogPump::CloseAttempt(const std::vector<LocalRank>& kept) {
  State& state = *state_;
  ++state.opening;
  bool any_open = false;
  for (const std::unique_ptr<State::Worker>& worker : state.workers) {
    if (absl::c_linear_search(kept, worker->who.local_rank)) {
      any_open = any_open || worker->is_open;
    } else {
      state.CloseWorker(*worker);
    }
  }
  if (!any_open) state.attempt.CloseFiltered();
  state.attempt.CloseHook();
  state.workers_ends.Clear();
}

const LogPump::State::Worker* LogPump::State::FindWorker(LocalRank local_rank) const {
  for (const std::unique_ptr<Worker>& worker : workers) {
    if (worker->who.local_rank == local_rank) return worker.get();
  }
  return nullptr;
}

void LogPump::TakeLastWords(LocalRank local_rank, absl::Duration at_most,
                            absl::AnyInvocable<void(LastWords)> then) {
  DrainNow(local_rank);
  const State::Worker* const worker = state_->FindWorker(local_rank);
  MUSTER_CHECK(worker != nullptr);
  const auto file_of = [&](ConsoleStream stream) -> FileTail {
    const State::WorkerStream& its = worker->streams[Index(stream)];
    if (its.route.way != StreamRoute::Way::kFile || !its.file) return {};
    return {its.file->path(), its.file->start_offset()};
  };
  const bool writes_itself = absl::c_any_of(worker->streams, [](const State::WorkerStream& its) {
    return its.route.way == StreamRoute::Way::kFile;
  });
  const std::string said = worker->tail.bytes();
  state_->aside.Run<LastWords>(
      at_most,
      [said, out = file_of(ConsoleStream::kStdout), err = file_of(ConsoleStream::kStderr),
       error_file = ErrorFileIn(worker->directory), folder = state_->folder,
       written = writes_itself ? worker->directory : ""] {
        // Standard error last: of two files it says more about a failure.
        return LastWords{.output = JoinOutput({out.Read(), said, err.Read()}),
                         .error = ReadErrorFile(error_file),
                         .why_full = written.empty() ? "" : folder.WhyFull(written)};
      },
      [said, then = std::move(then)](std::optional<LastWords> words) mutable {
        then(words ? *std::move(words)
                   : LastWords{.output = JoinOutput({said}), .files_answered = false});
      });
}

UniqueFd LogPump::TakeHookOutput() { return state_->attempt.hook().TakeDescriptor(); }

void LogPump::TakeHookWords(absl::Duration at_most, absl::AnyInvocable<void(std::string)> then) {
  const FileTail file = {state_->attempt.hook().path(), state_->attempt.hook().start_offset()};
  state_->aside.Run<std::string>(
      at_most, [file] { return JoinOutput({file.Read()}); },
      [then = std::move(then)](std::optional<std::string> words) mutable {
        then(words.value_or(""));
      });
}

void LogPump::PrintLine(const std::string& line) {
  state_->consoles.of(ConsoleStream::kStderr).layout->PrintLine(line, MonoNow());
  state_->WriteOut();
}

void LogPump::OnWindowSize() {
  state_->consoles.Resize();
  state_->ResizeTerminals();
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
  const bool all = state_->files->Flush(at_most);
  return state_->consoles.Flush(deadline - MonoNow()) && all;
}

void LogPump::RemoveRunIfUnused(absl::Duration at_most, absl::AnyInvocable<void()> then) {
  state_->aside.Run<bool>(
      at_most,
      [run = state_->options.run_directory] {
        const bool is_unused = !HasContentBelow(run);
        if (is_unused) RemoveOwnedPath(run.substr(0, run.rfind('/')));
        return is_unused;
      },
      [then = std::move(then)](std::optional<bool>) mutable { then(); });
}

}  // namespace muster::agent

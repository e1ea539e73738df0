#include "agent/console/log_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/console/attempt.h"
#include "agent/console/output_router.h"
#include "agent/console/pty.h"
#include "agent/console/terminal_input.h"
#include "agent/console/worker_stream.h"
#include "agent/process/aside.h"
#include "agent/process/parked_descriptors.h"
#include "agent/process/runtime_directory.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// One stream is read so far before timers and other streams get their turn.
constexpr size_t kTurnBytes = 256 * 1024;
constexpr int kPipeBytes = 256 * 1024;
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

struct LogPump::State {
  State(asio::io_context& event_loop, LogPumpOptions pump_options)
      : options(std::move(pump_options)),
        loop(event_loop),
        attempt(options),
        router(loop, options, attempt, streams, [this] { ResumeReading(); }),
        aside(loop, attempt.shared_writer()),
        buffer(kReadBytes, '\0') {}

  // Shapes: plans, result [workers].
  absl::StatusOr<std::vector<WorkerStreams>> OpenWorkers(const std::vector<WorkerPlan>& plans,
                                                         Attempt::OpenFiles files);
  void FollowKept(const std::vector<WorkerPlan>& plans);
  absl::Status OpenWorker(AttemptWorker& worker, Attempt::OpenFiles& files, WorkerStreams& out);
  absl::Status OpenStream(AttemptWorker& worker, ConsoleStream which, Attempt::OpenFiles& files,
                          WorkerStreams& out);
  absl::Status OpenPipe(AttemptWorker& worker, ConsoleStream which, UniqueFd& out);
  bool OpenTerminal(AttemptWorker& worker, ConsoleStream which, UniqueFd& out);
  bool ShareStream(AttemptWorker& worker, WorkerStreams& out);
  absl::Status Watch(AttemptWorker& worker, ConsoleStream which, UniqueFd end, bool is_terminal);
  WorkerStream* TerminalOf(const AttemptWorker& worker);
  void GiveInput(AttemptWorker& worker, WorkerStreams& out);
  void PlaceInput();
  void CloseWorker(AttemptWorker& worker);

  std::vector<int> StreamsOf(LocalRank local_rank) const;
  void WaitFor(WorkerStream& stream);
  void OnReadable(int id);
  void ResumeReading();
  void Drain(int id);
  void EndStream(int id);

  const LogPumpOptions options;
  asio::io_context& loop;
  Attempt attempt;
  WorkerStreamsById streams;  // of the attempt's workers
  OutputRouter router;
  Aside aside;
  uint64_t opening = 0;            // the attempt that is being opened, or that was last; grows
  ParkedDescriptors workers_ends;  // of the streams, until they are taken
  int next_stream_id = 0;
  std::optional<TerminalInput> input;  // of the only worker; goes before its stream
  std::string buffer;                  // for read(2)
  const std::shared_ptr<bool> alive =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

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
  state.attempt.Begin(attempt, workers);
  std::vector<WorkerPlan> plans = state.attempt.Plan(workers, state.router.Facts());
  using Made = absl::StatusOr<Attempt::OpenFiles>;
  auto make = state.attempt.Maker(plans);  // before they are moved
  state.aside.Run<Made>(at_most, std::move(make),
                        [this, at_most, opening = state.opening, kept, plans = std::move(plans),
                         on_open = std::move(on_open)](std::optional<Made> made) mutable {
                          if (opening != state_->opening) return;  // closed meanwhile
                          if (!made)
                            made = NotAnswering(state_->attempt.shared().directory(), at_most);
                          absl::StatusOr<std::vector<WorkerStreams>> streams =
                              made->ok() ? state_->OpenWorkers(plans, **std::move(made))
                                         : made->status();
                          if (!streams.ok()) CloseAttempt(kept);
                          on_open(std::move(streams));
                        });
}

// What can fail comes first: until then kept workers are left as they are.
absl::StatusOr<std::vector<WorkerStreams>> LogPump::State::OpenWorkers(
    const std::vector<WorkerPlan>& plans, Attempt::OpenFiles files) {
  std::vector<WorkerStreams> all(plans.size());
  workers_ends.Clear();
  for (size_t i = 0; i < plans.size(); ++i) {
    AttemptWorker& worker = *attempt.workers()[i];
    all[i].directory = worker.directory;
    all[i].error_file = worker.ErrorFile();
    if (plans[i].who.is_kept) continue;
    plans[i].Follow(worker);
    MUSTER_RETURN_IF_ERROR(OpenWorker(worker, files, all[i]));
  }
  FollowKept(plans);
  attempt.shared().Open(files);
  router.LayOut();
  PlaceInput();
  return all;
}

// What they have written before is their former rank's.
void LogPump::State::FollowKept(const std::vector<WorkerPlan>& plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i].who.is_kept) continue;
    for (const int id : StreamsOf(plans[i].who.local_rank)) {
      WorkerStream& stream = streams.at(id);
      Drain(id);
      if (!plans[i].route(stream.which).to_filtered) router.EndFilteredLine(stream);
    }
    plans[i].Follow(*attempt.workers()[i]);
  }
  router.WriteOut();
}

absl::Status LogPump::State::OpenWorker(AttemptWorker& worker, Attempt::OpenFiles& files,
                                        WorkerStreams& out) {
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

absl::Status LogPump::State::OpenStream(AttemptWorker& worker, ConsoleStream which,
                                        Attempt::OpenFiles& files, WorkerStreams& out) {
  AttemptStream& its = worker.of(which);
  UniqueFd& fd = which == ConsoleStream::kStdout ? out.stdout_fd : out.stderr_fd;
  if (its.route.to_file) its.file = std::move(files.at(worker.LogFile(which)));
  if (its.route.way == StreamRoute::Way::kFile) {
    fd = its.file->TakeDescriptor();
    return absl::OkStatus();
  }
  if (which == ConsoleStream::kStderr && ShareStream(worker, out)) return absl::OkStatus();
  const bool sees_terminal = its.route.way == StreamRoute::Way::kTerminal;
  if (sees_terminal && OpenTerminal(worker, which, fd)) return absl::OkStatus();
  return OpenPipe(worker, which, fd);  // also where no terminal is left
}

// Both streams that end on one console, and nowhere else, go through one pipe or terminal, as they
// would without us: that keeps their order. Nobody sees the order of what is not shown.
bool LogPump::State::ShareStream(AttemptWorker& worker, WorkerStreams& out) {
  const AttemptStream& first = worker.of(ConsoleStream::kStdout);
  const AttemptStream& second = worker.of(ConsoleStream::kStderr);
  const bool alike = router.consoles().all().size() == 1 && first.route == second.route &&
                     !first.route.to_file && !first.route.to_filtered &&
                     first.prefix == second.prefix;
  if (!alike || (!first.route.to_console && TerminalOf(worker) == nullptr)) return false;
  out.stderr_fd.reset(::fcntl(out.stdout_fd.get(), F_DUPFD_CLOEXEC, 3));
  return static_cast<bool>(out.stderr_fd);
}

bool LogPump::State::OpenTerminal(AttemptWorker& worker, ConsoleStream which, UniqueFd& out) {
  termios modes;
  const bool known = TerminalInput::ReadModes(options.console_stdin, &modes);
  std::optional<Pty> pty = OpenPty(router.WindowOf(worker, which), known ? &modes : nullptr);
  if (!pty || !Watch(worker, which, std::move(pty->ours), /*is_terminal=*/true).ok()) return false;
  out = std::move(pty->worker);
  return true;
}

absl::Status LogPump::State::OpenPipe(AttemptWorker& worker, ConsoleStream which, UniqueFd& out) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return LogPathError("make a pipe for", worker.directory, errno);
  UniqueFd read_end(ends[0]);
  out.reset(ends[1]);
  ::fcntl(read_end.get(), F_SETPIPE_SZ, kPipeBytes);  // as large as the system lets us
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  return Watch(worker, which, std::move(read_end), /*is_terminal=*/false);
}

absl::Status LogPump::State::Watch(AttemptWorker& worker, ConsoleStream which, UniqueFd end,
                                   bool is_terminal) {
  const int id = next_stream_id++;
  WorkerStream& stream =
      streams.try_emplace(id, loop, id, which, worker, is_terminal).first->second;
  if (const absl::Status opened = stream.Open(std::move(end)); !opened.ok()) {
    streams.erase(id);
    return opened;
  }
  WaitFor(stream);
  return absl::OkStatus();
}

// That its standard output is; null: none is.
WorkerStream* LogPump::State::TerminalOf(const AttemptWorker& worker) {
  for (auto& [id, stream] : streams) {
    if (&stream.worker == &worker && stream.is_terminal && stream.which == ConsoleStream::kStdout)
      return &stream;
  }
  return nullptr;
}

// One worker alone takes what is typed at the terminal, if its output is there too; several inherit
// the terminal, as under torchrun.
void LogPump::State::GiveInput(AttemptWorker& worker, WorkerStreams& out) {
  if (attempt.workers().size() != 1 || !IsTerminal(options.console_stdin)) return;
  if (TerminalOf(worker) == nullptr || !worker.of(ConsoleStream::kStdout).route.to_console) return;
  out.stdin_fd.reset(::fcntl(out.stdout_fd.get(), F_DUPFD_CLOEXEC, 3));
  worker.takes_keys = static_cast<bool>(out.stdin_fd);
}

// A kept worker that inherited the terminal reads from it itself. One that has got others beside it
// gets no more keys: the others inherit the terminal.
void LogPump::State::PlaceInput() {
  const auto& workers = attempt.workers();
  const AttemptWorker* const only = workers.size() == 1 ? workers.front().get() : nullptr;
  const bool takes_keys =
      only != nullptr && only->takes_keys && only->of(ConsoleStream::kStdout).route.to_console;
  WorkerStream* const terminal = takes_keys ? TerminalOf(*only) : nullptr;
  if (terminal == nullptr) return input.reset();
  if (input && input->worker() == terminal->fd()) return;
  input.emplace(loop, options.console_stdin, terminal->fd());
}

void LogPump::State::WaitFor(WorkerStream& stream) {
  stream.Wait([this, id = stream.id, alive = std::weak_ptr<bool>(alive)] {
    if (!alive.expired()) OnReadable(id);
  });
}

void LogPump::State::OnReadable(int id) {
  const auto found = streams.find(id);
  if (found == streams.end()) return;
  WorkerStream& stream = found->second;
  stream.Awake();
  if (stream.is_shown && router.IsCongested(stream)) return;  // ResumeReading goes on
  const auto deliver = [&](absl::string_view bytes) { return router.Deliver(stream, bytes); };
  if (stream.Read(kTurnBytes, buffer, deliver)) {
    WaitFor(stream);
  } else {
    EndStream(id);
  }
}

void LogPump::State::ResumeReading() {
  for (auto& [id, stream] : streams) WaitFor(stream);
}

void LogPump::State::Drain(int id) {
  WorkerStream& stream = streams.at(id);
  stream.Drain(buffer, [&](absl::string_view bytes) { return router.Deliver(stream, bytes); });
}

void LogPump::State::EndStream(int id) {
  WorkerStream& stream = streams.at(id);
  if (input && input->worker() == stream.fd()) input.reset();
  router.End(stream);
  streams.erase(id);
}

absl::Status LogPump::TakeDescriptors(WorkerStreams& streams) {
  std::vector<UniqueFd> ends = state_->workers_ends.TakeNext();
  if (ends.size() < 2) return LogPathError("open the streams of", streams.directory, EMFILE);
  streams.stdout_fd = std::move(ends[0]);
  streams.stderr_fd = std::move(ends[1]);
  if (ends.size() > 2) streams.stdin_fd = std::move(ends[2]);
  return absl::OkStatus();
}

std::vector<int> LogPump::State::StreamsOf(LocalRank local_rank) const {
  std::vector<int> ids;
  for (const auto& [id, stream] : streams) {
    if (stream.worker.who.local_rank == local_rank) ids.push_back(id);
  }
  return ids;
}

void LogPump::DrainNow(LocalRank local_rank) {
  for (const int id : state_->StreamsOf(local_rank)) state_->Drain(id);
}

void LogPump::State::CloseWorker(AttemptWorker& worker) {
  for (const int id : StreamsOf(worker.who.local_rank)) {
    Drain(id);
    EndStream(id);
  }
  for (AttemptStream& stream : worker.streams) {
    if (stream.file) stream.file->Close();  // its path is asked for until the next attempt
  }
  worker.is_open = false;
}

void LogPump::CloseAttempt(const std::vector<LocalRank>& kept) {
  State& state = *state_;
  ++state.opening;
  bool any_open = false;
  for (const auto& worker : state.attempt.workers()) {
    if (absl::c_linear_search(kept, worker->who.local_rank)) {
      any_open = any_open || worker->is_open;
    } else {
      state.CloseWorker(*worker);
    }
  }
  if (!any_open) state.attempt.shared().CloseFiltered();
  state.attempt.shared().CloseHook();
  state.workers_ends.Clear();
}

void LogPump::TakeLastWords(LocalRank local_rank, absl::Duration at_most,
                            absl::AnyInvocable<void(LastWords)> then) {
  DrainNow(local_rank);
  const AttemptWorker* const worker = state_->attempt.Find(local_rank);
  MUSTER_CHECK(worker != nullptr);
  const auto file_of = [&](ConsoleStream stream) -> FileTail {
    const AttemptStream& its = worker->of(stream);
    if (its.route.way != StreamRoute::Way::kFile || !its.file) return {};
    return {its.file->path(), its.file->start_offset()};
  };
  const bool writes_itself = absl::c_any_of(worker->streams, [](const AttemptStream& its) {
    return its.route.way == StreamRoute::Way::kFile;
  });
  const std::string said = worker->tail.bytes();
  state_->aside.Run<LastWords>(
      at_most,
      [said, out = file_of(ConsoleStream::kStdout), err = file_of(ConsoleStream::kStderr),
       error_file = worker->ErrorFile(), folder = state_->attempt.folder(),
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

UniqueFd LogPump::TakeHookOutput() { return state_->attempt.shared().hook().TakeDescriptor(); }

void LogPump::TakeHookWords(absl::Duration at_most, absl::AnyInvocable<void(std::string)> then) {
  const FileTail file = {state_->attempt.shared().hook().path(),
                         state_->attempt.shared().hook().start_offset()};
  state_->aside.Run<std::string>(
      at_most, [file] { return JoinOutput({file.Read()}); },
      [then = std::move(then)](std::optional<std::string> words) mutable {
        then(words.value_or(""));
      });
}

void LogPump::PrintLine(const std::string& line) {
  state_->router.consoles().of(ConsoleStream::kStderr).layout->PrintLine(line, MonoNow());
  state_->router.WriteOut();
}

void LogPump::OnWindowSize() {
  state_->router.consoles().Resize();
  state_->router.ResizeTerminals();
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
  const bool all = state_->attempt.writer().Flush(at_most);
  return state_->router.consoles().Flush(deadline - MonoNow()) && all;
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

#include "agent/console/output_router.h"

#include <algorithm>
#include <set>
#include <utility>

#include "agent/console/line_format.h"
#include "agent/console/worker_screen.h"

namespace muster::agent {
namespace {

constexpr char kDefaultRole[] = "default";  // torchrun's; not a role that was given
constexpr int kWorkerColumnsMin = 10;

}  // namespace

OutputRouter::OutputRouter(asio::io_context& loop, const LogPumpOptions& options, Attempt& attempt,
                           WorkerStreamsById& streams, std::function<void()> on_drained)
    : options_(options),
      attempt_(attempt),
      streams_(streams),
      consoles_(loop, options.console_stdout, options.console_stderr,
                {.host = options.host,
                 .partial_line_wait = options.partial_line_wait,
                 .fold = options.logs.fold,
                 .fold_window = options.fold_window},
                std::move(on_drained)) {}

std::array<ConsoleFacts, 2> OutputRouter::Facts() {
  std::array<ConsoleFacts, 2> facts;
  for (const ConsoleStream stream : kConsoleStreams) {
    facts[Index(stream)] = {.is_terminal = consoles_.of(stream).is_terminal,
                            .has_role = options_.role != kDefaultRole,
                            .ranks_may_change = options_.keeps_workers};
  }
  return facts;
}

void OutputRouter::LayOut() {
  for (const std::unique_ptr<Console>& console : consoles_.all()) {
    std::set<Rank> ranks;
    bool has_prefixes = false;
    for (const auto& worker : attempt_.workers()) {
      for (const ConsoleStream stream : kConsoleStreams) {
        const StreamRoute& route = worker->of(stream).route;
        if (&consoles_.of(stream) != console.get() || !route.to_console) continue;
        ranks.insert(worker->who.rank);
        has_prefixes = has_prefixes || route.has_prefix;
      }
    }
    Console::Kind kind = Console::Kind::kPlain;
    if (console->is_screen && ranks.size() == 1 && !has_prefixes) {
      kind = Console::Kind::kPassThrough;
    } else if (console->is_screen && options_.cursor_moves) {
      kind = Console::Kind::kTerminal;
    }
    LayOut(*console, kind, static_cast<int>(ranks.size()));
  }
  ResizeTerminals();
  WriteOut();
}

// A layout that fits stays: it knows what ends the console, and what kept workers have begun.
void OutputRouter::LayOut(Console& console, Console::Kind kind, int num_ranks) {
  if (console.kind != kind) {
    for (auto& [id, stream] : streams_) {
      if (IsOn(console, stream) && std::exchange(stream.is_shown, false)) {
        console.layout->End(id, MonoNow());
      }
    }
    console.layout->Leave();
    WriteOut();
    console.MakeLayout(kind);
  }
  console.layout->SetNumRanks(num_ranks);
  for (auto& [id, stream] : streams_) {
    if (IsOn(console, stream)) Show(stream);
  }
}

// Shows or hides the stream as its route has it, which may be another now.
void OutputRouter::Show(WorkerStream& stream) {
  const AttemptStream& its = stream.its();
  ConsoleLayout& layout = *consoles_.of(stream.which).layout;
  const ConsoleSource source{stream.id, stream.worker.who.rank,
                             its.route.has_prefix ? its.prefix : ""};
  const bool was_shown = std::exchange(stream.is_shown, its.route.to_console);
  if (was_shown && stream.is_shown) {
    layout.Rename(source, MonoNow());
  } else if (was_shown) {
    layout.End(stream.id, MonoNow());
  } else if (stream.is_shown) {
    layout.Open(source);
  }
}

void OutputRouter::ResizeTerminals() {
  for (auto& [id, stream] : streams_) {
    if (stream.is_terminal) SetWindowSize(stream.fd(), WindowOf(stream.worker, stream.which));
  }
}

WindowSize OutputRouter::WindowOf(const AttemptWorker& worker, ConsoleStream stream) {
  WindowSize size = GetWindowSize(consoles_.of(stream).fd);
  if (!worker.of(stream).route.has_prefix) return size;
  size.columns = std::max(kWorkerColumnsMin, size.columns - ColumnsOf(worker.of(stream).prefix));
  return size;
}

bool OutputRouter::Deliver(WorkerStream& stream, absl::string_view bytes) {
  AttemptStream& its = stream.its();
  stream.worker.tail.Append(stream.which, bytes);
  if (its.file) its.file->Append(bytes);
  if (its.route.to_filtered) {
    stream.CutLines(bytes, [&](absl::string_view line) { Filter(stream, line); });
  }
  if (stream.is_shown) consoles_.of(stream.which).layout->Append(stream.id, bytes, MonoNow());
  WriteOut();
  return !IsCongested(stream);
}

bool OutputRouter::IsCongested(const WorkerStream& stream) {
  return consoles_.of(stream.which).writer.is_congested();
}

void OutputRouter::Filter(const WorkerStream& stream, absl::string_view line) {
  const LogSpec& logs = options_.logs;
  if (MatchesAnyFilter(line, stream.which == ConsoleStream::kStdout
                                 ? logs.duplicate_stdout_filters
                                 : logs.duplicate_stderr_filters)) {
    attempt_.shared().AddFiltered(stream.which, stream.worker.of(stream.which).prefix, line);
  }
}

void OutputRouter::EndFilteredLine(WorkerStream& stream) {
  stream.FinishLine([&](absl::string_view line) { Filter(stream, line); });
}

void OutputRouter::End(WorkerStream& stream) {
  EndFilteredLine(stream);
  if (stream.is_shown) consoles_.of(stream.which).layout->End(stream.id, MonoNow());
  WriteOut();
}

void OutputRouter::WriteOut() {
  attempt_.shared().WriteOut();
  consoles_.WriteOut();
}

}  // namespace muster::agent

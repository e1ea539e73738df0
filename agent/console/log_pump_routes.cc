// LogPump: where the streams of an attempt's workers go, and how the consoles are laid out for
// them.
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_pump_state.h"
#include "agent/console/pty.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr char kDefaultRole[] = "default";  // torchrun's; not a role that was given

}  // namespace

ConsoleFacts LogPump::State::FactsOf(ConsoleStream stream) {
  return {.is_terminal = consoles.of(stream).is_terminal,
          .has_role = options.role != kDefaultRole,
          .ranks_may_change = options.keeps_workers};
}

// Those of the attempt before have been closed, but for kept ones.
void LogPump::State::ReplaceWorkers(const std::vector<PumpedWorker>& who) {
  std::vector<std::unique_ptr<Worker>> before = std::exchange(workers, {});
  for (const PumpedWorker& one : who) {
    if (one.is_kept) {
      const auto found = absl::c_find_if(before, [&](const std::unique_ptr<Worker>& worker) {
        return worker != nullptr && worker->who.local_rank == one.local_rank;
      });
      MUSTER_CHECK(found != before.end() && (*found)->is_open);
      workers.push_back(std::move(*found));
      continue;
    }
    auto worker = std::make_unique<Worker>();
    worker->who = one;
    worker->directory = absl::StrCat(attempt.directory(), "/", one.local_rank.value());
    workers.push_back(std::move(worker));
  }
}

std::vector<LogPump::State::WorkerPlan> LogPump::State::PlanWorkers(
    const std::vector<PumpedWorker>& who) {
  std::vector<WorkerPlan> plans(who.size());
  for (const ConsoleStream stream : kConsoleStreams) {
    const ConsoleFacts facts = FactsOf(stream);
    const std::vector<StreamRoute> routes = DecideRoutes(options.logs, stream, who, facts);
    for (size_t i = 0; i < who.size(); ++i) {
      const StreamRoute& before = workers[i]->streams[Index(stream)].route;
      plans[i].who = who[i];
      plans[i].routes[Index(stream)] =
          who[i].is_kept ? ContinueRoute(before, routes[i]) : routes[i];
      plans[i].prefixes[Index(stream)] =
          MakeLinePrefix(PrefixTemplate(options.logs, stream, who[i], facts),
                         {options.host, options.role, who[i].rank, who[i].local_rank});
    }
  }
  return plans;
}

void LogPump::State::Follow(Worker& worker, const WorkerPlan& plan) {
  worker.who = plan.who;
  for (const ConsoleStream stream : kConsoleStreams) {
    worker.streams[Index(stream)].route = plan.routes[Index(stream)];
    worker.streams[Index(stream)].prefix = plan.prefixes[Index(stream)];
  }
}

// What they have written before is their former rank's.
void LogPump::State::FollowKept(const std::vector<WorkerPlan>& plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i].who.is_kept) continue;
    for (const int id : PipesOf(plans[i].who.local_rank)) {
      Pipe& pipe = pipes.at(id);
      Drain(id);
      if (!plans[i].routes[Index(pipe.stream)].to_filtered) EndFilterLine(pipe);
    }
    Follow(*workers[i], plans[i]);
  }
  WriteOut();
}

void LogPump::State::LayOutConsoles() {
  for (const std::unique_ptr<Console>& console : consoles.all()) {
    std::set<Rank> ranks;
    bool has_prefixes = false;
    for (const std::unique_ptr<Worker>& worker : workers) {
      for (const ConsoleStream stream : kConsoleStreams) {
        const StreamRoute& route = worker->streams[Index(stream)].route;
        if (&consoles.of(stream) != console.get() || !route.to_console) continue;
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
  ResizeTerminals();
  WriteOut();
}

// A layout that fits stays: it knows what ends the console, and what kept workers have begun.
void LogPump::State::LayOut(Console& console, Console::Kind kind, int num_ranks) {
  if (console.kind != kind) {
    for (auto& [id, pipe] : pipes) {
      if (IsOn(console, pipe) && std::exchange(pipe.is_shown, false))
        console.layout->End(id, MonoNow());
    }
    console.layout->Leave();
    WriteOut();
    console.MakeLayout(kind);
  }
  console.layout->SetNumRanks(num_ranks);
  for (auto& [id, pipe] : pipes) {
    if (IsOn(console, pipe)) Show(pipe);
  }
}

// Shows or hides the pipe as the route of its stream has it, which may be another now.
void LogPump::State::Show(Pipe& pipe) {
  const WorkerStream& its = pipe.worker->streams[Index(pipe.stream)];
  ConsoleLayout& layout = *consoles.of(pipe.stream).layout;
  const ConsoleSource source{pipe.id, pipe.worker->who.rank,
                             its.route.has_prefix ? its.prefix : ""};
  const bool was_shown = std::exchange(pipe.is_shown, its.route.to_console);
  if (was_shown && pipe.is_shown) {
    layout.Rename(source, MonoNow());
  } else if (was_shown) {
    layout.End(pipe.id, MonoNow());
  } else if (pipe.is_shown) {
    layout.Open(source);
  }
}

void LogPump::State::ResizeTerminals() {
  for (auto& [id, pipe] : pipes) {
    if (pipe.is_terminal)
      SetWindowSize(pipe.end.native_handle(), WorkerWindow(*pipe.worker, pipe.stream));
  }
}

}  // namespace muster::agent

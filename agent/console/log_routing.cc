#include "agent/console/log_routing.h"

#include <algorithm>

namespace muster::agent {
namespace {

bool Selects(const StreamSelection& selection, ConsoleStream stream, LocalRank local_rank) {
  const StreamSet set = selection.For(local_rank.value());
  return stream == ConsoleStream::kStdout ? HasStdout(set) : HasStderr(set);
}

bool ReachesConsole(const LogSpec& logs, const PumpedWorker& worker) {
  if (logs.console == ConsoleMode::kNone) return false;
  if (logs.console == ConsoleMode::kRank0 && worker.rank != Rank(0)) return false;
  const std::vector<int>& listed = logs.local_ranks_filter;
  return listed.empty() ||
         std::find(listed.begin(), listed.end(), worker.local_rank.value()) != listed.end();
}

// Whether it would reach the console with some rank.
bool CanReachConsole(const LogSpec& logs, PumpedWorker worker) {
  worker.rank = Rank(0);
  return ReachesConsole(logs, worker);
}

bool HasPrefix(const LogSpec& logs, bool teed, bool shares_terminal) {
  if (logs.console == ConsoleMode::kRaw) return false;
  return logs.console == ConsoleMode::kPrefix || teed || shares_terminal || logs.fold ||
         !logs.line_prefix_template.empty();
}

}  // namespace

std::vector<StreamRoute> DecideRoutes(const LogSpec& logs, ConsoleStream stream,
                                      const std::vector<PumpedWorker>& workers,
                                      const ConsoleFacts& facts) {
  const bool has_filters = stream == ConsoleStream::kStdout
                               ? !logs.duplicate_stdout_filters.empty()
                               : !logs.duplicate_stderr_filters.empty();
  const bool any_teed = std::any_of(
      workers.begin(), workers.end(),
      [&](const PumpedWorker& worker) { return Selects(logs.tee, stream, worker.local_rank); });
  std::vector<StreamRoute> routes;
  for (const PumpedWorker& worker : workers) {
    const bool teed = Selects(logs.tee, stream, worker.local_rank);
    const bool redirected = !teed && Selects(logs.redirects, stream, worker.local_rank);
    StreamRoute route;
    route.to_file = teed || redirected;
    route.to_console = !redirected && ReachesConsole(logs, worker);
    route.to_filtered = has_filters && (teed || !any_teed);
    const bool may_change = facts.ranks_may_change;
    const bool for_console =
        route.to_console || (may_change && !redirected && CanReachConsole(logs, worker));
    const bool for_filters = route.to_filtered || (may_change && has_filters);
    if (route.to_file && !for_console && !for_filters) {
      route.way = StreamRoute::Way::kFile;
    } else if (facts.is_terminal && for_console && !route.to_file) {
      route.way = StreamRoute::Way::kTerminal;
    }
    routes.push_back(route);
  }
  const auto num_on_console = std::count_if(routes.begin(), routes.end(),
                                            [](const StreamRoute& r) { return r.to_console; });
  for (size_t i = 0; i < routes.size(); ++i) {
    const bool teed = Selects(logs.tee, stream, workers[i].local_rank);
    routes[i].has_prefix =
        routes[i].to_console && HasPrefix(logs, teed, facts.is_terminal && num_on_console > 1);
  }
  return routes;
}

StreamRoute ContinueRoute(const StreamRoute& started, StreamRoute wanted) {
  wanted.way = started.way;
  wanted.to_file = started.to_file;
  if (started.way == StreamRoute::Way::kFile)
    wanted.to_console = wanted.to_filtered = wanted.has_prefix = false;
  return wanted;
}

absl::string_view PrefixTemplate(const LogSpec& logs, ConsoleStream stream,
                                 const PumpedWorker& worker, const ConsoleFacts& facts) {
  if (!logs.line_prefix_template.empty()) return logs.line_prefix_template;
  const bool as_torchrun = facts.has_role || Selects(logs.tee, stream, worker.local_rank);
  return as_torchrun ? kTorchrunPrefix : kHostPrefix;
}

}  // namespace muster::agent

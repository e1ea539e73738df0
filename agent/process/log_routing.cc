#include "agent/process/log_routing.h"

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

}  // namespace

std::vector<StreamRoute> DecideRoutes(const LogSpec& logs, ConsoleStream stream,
                                      const std::vector<PumpedWorker>& workers) {
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
    if (route.to_file && !route.to_console && !route.to_filtered) {
      route.way = StreamRoute::Way::kFile;
    } else if (workers.size() == 1 && route.to_console && !route.to_file && !route.to_filtered) {
      route.way = StreamRoute::Way::kInherit;
    }
    routes.push_back(route);
  }
  return routes;
}

}  // namespace muster::agent

#include "worker_runtime/plan/stage_cut.h"

#include <algorithm>
#include <limits>

#include "proto/base/status_macros.h"

namespace muster::plan {

std::vector<int> CutIntoStages(absl::Span<const double> work, int stages) {
  const int units = static_cast<int>(work.size());
  MUSTER_CHECK(1 <= stages && stages <= units);
  std::vector<double> before(units + 1, 0);
  for (int u = 0; u < units; ++u) before[u + 1] = before[u] + work[u];
  // least[s][u]: of the first u units in s + 1 stages, the work of the stage that has the most.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(stages, std::vector<double>(units + 1, kNever));
  std::vector<std::vector<int>> begin(stages, std::vector<int>(units + 1, 0));
  for (int u = 1; u <= units; ++u) least[0][u] = before[u];
  for (int s = 1; s < stages; ++s) {
    for (int u = s + 1; u <= units; ++u) {
      for (int first = s; first < u; ++first) {
        const double most = std::max(least[s - 1][first], before[u] - before[first]);
        if (most > least[s][u]) continue;
        least[s][u] = most;
        begin[s][u] = first;
      }
    }
  }
  std::vector<int> first_units(stages, 0);
  for (int s = stages - 1, end = units; s > 0; --s) end = first_units[s] = begin[s][end];
  return first_units;
}

}  // namespace muster::plan

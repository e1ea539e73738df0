#include "worker_runtime/plan/stage_cut.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster::plan {
namespace {

// The beginning that the names share, and a *.
std::string PatternOf(absl::Span<const std::string> names) {
  absl::string_view shared = names.front();
  for (const absl::string_view name : names) {
    const auto [end, unused] =
        std::mismatch(shared.begin(), shared.end(), name.begin(), name.end());
    shared = shared.substr(0, end - shared.begin());
  }
  return absl::StrCat(shared, "*");
}

bool FitsAny(absl::Span<const std::string> names, absl::string_view pattern) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return FitsPattern(name, pattern); });
}

}  // namespace

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

absl::StatusOr<std::vector<double>> CostsOfUnits(absl::Span<const UnitCost> costs,
                                                 absl::Span<const std::string> units,
                                                 std::vector<double> products) {
  if (costs.empty()) return products;
  for (const UnitCost& cost : costs) {
    if (FitsAny(units, cost.units)) continue;
    const std::vector<std::string> names(units.begin(), units.end());
    return PlanError(
        "unit_costs",
        absl::StrCat(": '", cost.units, "' fits no unit of the model, which has ", names.front(),
                     " to ", names.back(), DidYouMean(cost.units, names)));
  }
  std::vector<double> found;
  for (const std::string& unit : units) {
    const auto cost = std::find_if(costs.begin(), costs.end(), [&](const UnitCost& candidate) {
      return FitsPattern(unit, candidate.units);
    });
    if (cost == costs.end()) {
      return PlanError("unit_costs", absl::StrCat(": no cost for unit ", unit, "; add ", unit,
                                                  ":COST, or *:COST for all that are left"));
    }
    found.push_back(cost->cost);
  }
  return found;
}

std::vector<UnitCost> ListCosts(absl::Span<const std::string> units,
                                absl::Span<const double> costs) {
  std::vector<UnitCost> list;
  for (size_t begin = 0, end = 0; begin < units.size(); begin = end) {
    while (end < units.size() && costs[end] == costs[begin]) ++end;
    const absl::Span<const std::string> alike = units.subspan(begin, end - begin);
    const std::string pattern = PatternOf(alike);
    const bool is_theirs =
        !FitsAny(units.first(begin), pattern) && !FitsAny(units.subspan(end), pattern);
    if (alike.size() > 1 && is_theirs) {
      list.push_back({.units = pattern, .cost = costs[begin]});
      continue;
    }
    for (const std::string& unit : alike) list.push_back({.units = unit, .cost = costs[begin]});
  }
  return list;
}

}  // namespace muster::plan

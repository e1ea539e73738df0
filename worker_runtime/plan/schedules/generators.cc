#include "worker_runtime/plan/schedules/generators.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

struct Generator {
  const char* name;
  int usual_stages_per_rank;
  absl::StatusOr<Schedule> (*make)(const ScheduleShape& shape);
};

constexpr std::array<Generator, 5> kGenerators = {{
    {"gpipe", 1, GPipe},
    {"1f1b", 1, OneForwardOneBackward},
    {"interleaved", 2, Interleaved},
    {"zb-h1", 1, ZeroBubbleH1},
    {"zbv", 2, ZeroBubbleV},
}};

std::string Folded(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", ""}, {"_", ""}});
}

const Generator* Find(absl::string_view name) {
  const auto found =
      std::find_if(kGenerators.begin(), kGenerators.end(),
                   [&](const Generator& one) { return Folded(one.name) == Folded(name); });
  return found == kGenerators.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const Generator& one : kGenerators) names.emplace_back(one.name);
  return names;
}

int UsualStagesPerRank(absl::string_view name) {
  const Generator* const found = Find(name);
  return found == nullptr ? 1 : found->usual_stages_per_rank;
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, const ScheduleShape& shape) {
  MUSTER_CHECK(shape.ranks >= 1 && shape.stages_per_rank >= 1 && shape.micro_batches >= 1);
  const Generator* const found = Find(name);
  if (found == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", absl::Utf8SafeCHexEscape(name), "' is not a known schedule; expected ",
        absl::StrJoin(ScheduleNames(), ", "), " or a file", DidYouMean(name, ScheduleNames())));
  }
  // Forward, and backward in two parts.
  const double passes =
      3.0 * shape.ranks * shape.stages_per_rank * static_cast<double>(shape.micro_batches);
  if (passes > static_cast<double>(kMostPasses)) {
    return absl::InvalidArgumentError(
        absl::StrCat(found->name, " over ", shape.ranks, " ranks with ", shape.stages_per_rank,
                     " stages each and ", shape.micro_batches, " micro-batches has ", passes,
                     " passes; at most ", kMostPasses, " can be looked at"));
  }
  return found->make(shape);
}

absl::Status CheckOneStagePerRank(absl::string_view name, const ScheduleShape& shape) {
  if (shape.stages_per_rank == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has one stage per rank, and ",
                                                 shape.stages_per_rank,
                                                 " are asked for; interleaved has several"));
}

}  // namespace muster::plan

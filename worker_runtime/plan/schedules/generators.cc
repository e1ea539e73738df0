#include "worker_runtime/plan/schedules/generators.h"

#include <algorithm>
#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/prove_schedule.h"

namespace muster::plan {
namespace {

struct Generator {
  const char* name;
  int usual_stages_per_rank;
  absl::StatusOr<Schedule> (*make)(const ScheduleShape& shape);
};

constexpr std::array<Generator, 6> kGenerators = {{
    {"gpipe", 1, GPipe},
    {"1f1b", 1, OneForwardOneBackward},
    {"interleaved", 2, Interleaved},
    {"zb-h1", 1, ZeroBubbleH1},
    {"zbv", 2, ZeroBubbleV},
    {"dualpipev", 2, DualPipeV},
}};

std::string ScheduleKey(absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", ""}, {"_", ""}});
}

const Generator* Find(absl::string_view name) {
  const auto found = std::find_if(
      kGenerators.begin(), kGenerators.end(),
      [&](const Generator& one) { return ScheduleKey(one.name) == ScheduleKey(name); });
  return found == kGenerators.end() ? nullptr : &*found;
}

absl::StatusOr<Schedule> ReadSchedule(absl::string_view text, const ScheduleShape& shape) {
  MUSTER_ASSIGN_OR_RETURN(Schedule schedule, ParseSchedule(text));
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, why...));
  };
  if (schedule.num_ranks() != shape.ranks) {
    return refuse(" is for ", schedule.num_ranks(), " ranks, and the pipeline has ", shape.ranks,
                  "; give --stages=", schedule.num_ranks());
  }
  if (schedule.micro_batches != shape.micro_batches) {
    return refuse(" is for ", schedule.micro_batches, " micro-batches, and a step has ",
                  shape.micro_batches, "; give --accumulation=", schedule.micro_batches);
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto stages = absl::c_count(schedule.rank_of_stage, rank);
    if (shape.stages_per_rank == kStagesOfText || stages == shape.stages_per_rank) continue;
    return refuse(": rank ", rank, " has ", stages, stages == 1 ? " stage" : " stages",
                  ", and --stages_per_rank is ", shape.stages_per_rank, "; leave that out");
  }
  MUSTER_RETURN_IF_ERROR(ProveSchedule(schedule, PassCosts()).status());
  return schedule;
}

}  // namespace

std::vector<std::string> ScheduleNames() {
  std::vector<std::string> names;
  for (const Generator& one : kGenerators) names.emplace_back(one.name);
  return names;
}

bool IsScheduleText(absl::string_view schedule) { return absl::StrContains(schedule, '\n'); }

std::string NameOfSchedule(absl::string_view schedule) {
  if (!IsScheduleText(schedule)) return std::string(schedule);
  const absl::StatusOr<Schedule> read = ParseSchedule(schedule);
  return read.ok() ? read->name : "unreadable";
}

bool IsScheduleFile(absl::string_view asked) {
  return absl::StrContains(asked, '/') || absl::StrContains(asked, '.');
}

int UsualStagesPerRank(absl::string_view schedule) {
  if (IsScheduleText(schedule)) {
    const absl::StatusOr<Schedule> read = ParseSchedule(schedule);
    return read.ok() ? read->stages_per_rank() : 1;
  }
  const Generator* const found = Find(schedule);
  return found == nullptr ? 1 : found->usual_stages_per_rank;
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, const ScheduleShape& shape) {
  MUSTER_CHECK(shape.ranks >= 1 && shape.micro_batches >= 1);
  if (IsScheduleText(name)) return ReadSchedule(name, shape);
  MUSTER_CHECK(shape.stages_per_rank >= 1);
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

#include "worker_runtime/plan/schedules/schedule_page.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/schedule_picture.h"

namespace muster::plan {
namespace {

constexpr char kEngineToday[] =
    "muster-train runs any of them, edited ones too: --stage_schedule=NAME or FILE.\n";

// Costs of a pass of one stage, of a rank that has so many: times in parts of `unit` of what the
// request's costs are in.
struct StageCosts {
  PassCosts costs;
  int64_t unit = 1;
};

StageCosts CostsOf(const PassCosts& of_rank, int stages_per_rank) {
  const int64_t v = stages_per_rank;
  const bool divides = of_rank.forward % v == 0 && of_rank.input_gradient % v == 0 &&
                       of_rank.weight_gradient % v == 0;
  if (!divides) return {of_rank, v};
  return {{of_rank.forward / v, of_rank.input_gradient / v, of_rank.weight_gradient / v}, 1};
}

double ShareOf(const Fraction& fraction) {
  return static_cast<double>(fraction.numerator) / static_cast<double>(fraction.denominator);
}

std::string Percent(const Fraction& fraction) {
  return absl::StrFormat("%.3g %%", 100 * ShareOf(fraction));
}

std::string CostsText(const PassCosts& costs) {
  return absl::StrCat("a rank's passes over one micro-batch take F ", costs.forward, ", I ",
                      costs.input_gradient, " and W ", costs.weight_gradient, " (B ",
                      costs.Of(PassKind::kBackward), ")");
}

absl::StatusOr<std::string> Show(const Schedule& schedule, const PassCosts& of_rank,
                                 ScheduleForm form) {
  const StageCosts costs = CostsOf(of_rank, schedule.stages_per_rank());
  MUSTER_ASSIGN_OR_RETURN(const ScheduleProof proof, ProveSchedule(schedule, costs.costs));
  if (form == ScheduleForm::kFile) return FormatSchedule(schedule);
  if (form == ScheduleForm::kSvg) return DrawSvg(schedule, proof);
  std::string page = absl::StrCat(
      "schedule ", schedule.name, ": ", schedule.num_ranks(), " ranks, ", schedule.num_stages(),
      " stages, ", schedule.micro_batches, " micro-batches; ", CostsText(of_rank), "\n");
  ValueLine(page, "ends",
            "yes: every pass is done, and both sides of each transfer have one order");
  ValueLine(page, "step", absl::StrCat(ToString(FractionOf(proof.end, costs.unit))));
  ValueLine(page, "a rank waits, at most", ToString(FractionOf(proof.bubble(), costs.unit)));
  ValueLine(page, "idle share of all ranks",
            absl::StrCat(ToString(proof.idle_share()), " = ", Percent(proof.idle_share())));
  ValueLine(page, "live micro-batches, at most", ToString(proof.peak_micro_batches()));
  std::string by_rank;
  for (const RankTimes& rank : proof.ranks) {
    absl::StrAppend(&by_rank, by_rank.empty() ? "" : " ",
                    ToString(FractionOf(rank.peak_live, std::max(rank.stages, 1))));
  }
  ValueLine(page, "live micro-batches by rank", by_rank);
  ValueLine(page, "transfers in a step", absl::StrCat(proof.num_transfers));
  absl::StrAppend(&page, "\n", DrawText(schedule, proof), "\n", kEngineToday);
  return page;
}

struct Row {
  std::string name;
  std::vector<std::string> cells;  // empty: refused
  std::string refusal;
};

absl::StatusOr<Row> RowOf(const std::string& name, const ScheduleRequest& request) {
  Row row = {.name = name};
  const int usual = UsualStagesPerRank(name);
  const int stages = usual == 1 ? 1 : request.stages_per_rank.value_or(usual);
  const absl::StatusOr<Schedule> schedule = MakeSchedule(
      name,
      {.ranks = request.ranks, .stages_per_rank = stages, .micro_batches = request.micro_batches});
  if (!schedule.ok()) {
    row.refusal = std::string(schedule.status().message());
    return row;
  }
  const StageCosts costs = CostsOf(request.costs, stages);
  MUSTER_ASSIGN_OR_RETURN(const ScheduleProof proof, ProveSchedule(*schedule, costs.costs));
  row.cells = {absl::StrCat(stages),
               ToString(FractionOf(proof.end, costs.unit)),
               ToString(FractionOf(proof.bubble(), costs.unit)),
               absl::StrCat(ToString(proof.idle_share()), " = ", Percent(proof.idle_share())),
               ToString(proof.peak_micro_batches()),
               absl::StrCat(proof.num_transfers)};
  return row;
}

}  // namespace

void ValueLine(std::string& page, absl::string_view name, absl::string_view value) {
  absl::StrAppendFormat(&page, "  %-28s %s\n", name, value);
}

absl::StatusOr<std::string> CompareSchedules(const ScheduleRequest& request) {
  std::string page =
      absl::StrCat("schedules of a pipeline over ", request.ranks, " ranks and ",
                   request.micro_batches, " micro-batches; ", CostsText(request.costs), "\n\n");
  constexpr char kFormat[] = "  %-13s %6s %9s %9s %20s %8s %10s\n";
  absl::StrAppendFormat(&page, kFormat, "", "stages", "", "a rank", "idle share", "live", "");
  absl::StrAppendFormat(&page, kFormat, "schedule", "a rank", "step", "waits", "of all ranks",
                        "batches", "transfers");
  for (const std::string& name : ScheduleNames()) {
    MUSTER_ASSIGN_OR_RETURN(const Row row, RowOf(name, request));
    if (row.cells.empty()) {
      absl::StrAppendFormat(&page, "  %-13s no: %s\n", name, row.refusal);
      continue;
    }
    absl::StrAppendFormat(&page, kFormat, name, row.cells[0], row.cells[1], row.cells[2],
                          row.cells[3], row.cells[4], row.cells[5]);
  }
  absl::StrAppend(&page,
                  "\n  \"a rank waits\" is the most between a rank's first and last pass, \"live "
                  "batches\" are the\n  micro-batches whose activations a rank keeps at most; "
                  "transfers take no time here.\n  ",
                  kEngineToday);
  return page;
}

absl::StatusOr<std::string> ShowSchedule(absl::string_view name, const ScheduleRequest& request,
                                         ScheduleForm form) {
  MUSTER_ASSIGN_OR_RETURN(
      const Schedule schedule,
      MakeSchedule(name,
                   {.ranks = request.ranks,
                    .stages_per_rank = request.stages_per_rank.value_or(UsualStagesPerRank(name)),
                    .micro_batches = request.micro_batches}));
  return Show(schedule, request.costs, form);
}

absl::StatusOr<std::string> ShowScheduleFile(absl::string_view text, const ScheduleRequest& request,
                                             ScheduleForm form) {
  MUSTER_ASSIGN_OR_RETURN(const Schedule schedule, ParseSchedule(text));
  const auto check = [](absl::string_view what, int64_t own, int64_t said) {
    if (said == 0 || said == own) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the file is for ", own, " ", what, ", and ", said, " are asked for"));
  };
  MUSTER_RETURN_IF_ERROR(check("ranks", schedule.num_ranks(), request.ranks));
  MUSTER_RETURN_IF_ERROR(check("micro-batches", schedule.micro_batches, request.micro_batches));
  return Show(schedule, request.costs, form);
}

}  // namespace muster::plan

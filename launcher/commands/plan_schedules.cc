#include "launcher/commands/plan_schedules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"
#include "worker_runtime/plan/batch_equation.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::launcher {
namespace {

constexpr int64_t kMostCost = 1000;

absl::StatusOr<plan::ScheduleForm> ParseForm(const std::string& text) {
  return command_line::ParseChoice<plan::ScheduleForm>(text, {{"page", plan::ScheduleForm::kPage},
                                                              {"file", plan::ScheduleForm::kFile},
                                                              {"svg", plan::ScheduleForm::kSvg}});
}

absl::StatusOr<plan::PassCosts> ParseCosts(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  std::vector<int64_t> costs;
  for (const std::string& part : parts) {
    const absl::StatusOr<int64_t> cost = command_line::ParseInt64(part);
    if (cost.ok() && *cost >= 1 && *cost <= kMostCost) costs.push_back(*cost);
  }
  if (parts.size() != 3 || costs.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected three whole numbers from 1 to ", kMostCost,
                     ", as in 2,2,1: forward, gradients of inputs, gradients of weights"));
  }
  return plan::PassCosts{
      .forward = costs[0], .input_gradient = costs[1], .weight_gradient = costs[2]};
}

}  // namespace

std::vector<command_line::Option> ScheduleRows(ScheduleOptions& out) {
  using command_line::Into;
  std::vector<command_line::Option> rows = {
      {.name = "pipeline_schedule",
       .value_name = "S",
       .help = absl::StrCat("look at pipeline schedules instead: all compares them, one of ",
                            absl::StrJoin(plan::ScheduleNames(), ", "),
                            ", or a file with a / or . in its path, is proven and drawn"),
       .read = Into(command_line::ParseName, out.asked)},
      {.name = "schedule_form",
       .value_name = "F",
       .help = "print one schedule as a page, as a file to edit, or as svg (page)",
       .read = Into(ParseForm, out.form)},
      {.name = "pass_costs",
       .value_name = "F,I,W",
       .help = "how long a rank's passes over a micro-batch take: forward, gradients of inputs, "
               "gradients of weights (1,1,1)",
       .read = Into(ParseCosts, out.costs)},
  };
  for (command_line::Option& row : rows) row.group = "Pipeline schedules";
  return rows;
}

absl::StatusOr<std::string> ScheduleText(const ScheduleOptions& asked, plan::PlanOptions options,
                                         int64_t world_size, const command_line::CommandLine& line,
                                         const plan::ConfigView& files) {
  const bool says_ranks = line.Find("world_size") != nullptr || line.Find("stages") != nullptr;
  if (line.Find("stages") == nullptr) options.plan.stages = 0;
  MUSTER_ASSIGN_OR_RETURN(const int ranks, NumStages(options.plan, static_cast<int>(world_size)));
  MUSTER_RETURN_IF_ERROR(plan::SpreadBatch(options, world_size / ranks));
  plan::ScheduleRequest request = {
      .ranks = ranks, .micro_batches = options.plan.accumulation, .costs = asked.costs};
  if (options.plan.stages_per_rank > 0) {
    request.stages_per_rank = static_cast<int>(options.plan.stages_per_rank);
  }
  if (asked.asked == "all") {
    if (asked.form == plan::ScheduleForm::kPage) return plan::CompareSchedules(request);
    return absl::InvalidArgumentError(
        absl::StrCat("--schedule_form prints one schedule; give --pipeline_schedule one of ",
                     absl::StrJoin(plan::ScheduleNames(), ", ")));
  }
  absl::StatusOr<std::string> text;
  if (!plan::IsScheduleFile(asked.asked)) {
    text = plan::ShowSchedule(asked.asked, request, asked.form);
  } else {
    MUSTER_ASSIGN_OR_RETURN(const std::string file, files.read_file(asked.asked));
    text = plan::ShowScheduleFile(
        file,
        {.ranks = says_ranks ? request.ranks : 0,
         .micro_batches =
             line.Find("gradient_accumulation_steps") != nullptr ? request.micro_batches : 0,
         .costs = asked.costs},
        asked.form);
  }
  if (text.ok()) return text;
  return command_line::At("--pipeline_schedule", asked.asked, text.status());
}

}  // namespace muster::launcher

// A plan from command-line arguments and configuration files, for programs on the library.
#include "muster/plan_arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "worker_runtime/options/config_disk.h"
#include "worker_runtime/options/config_files.h"
#include "worker_runtime/options/plan_flags.h"
#include "worker_runtime/plan/batch_equation.h"
#include "worker_runtime/plan/mesh_page.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster {

absl::StatusOr<PlanArguments> PlanFromArguments(const std::vector<std::string>& arguments,
                                                const PlanRanks& ranks) {
  plan::PlanOptions options;
  const command_line::Grammar grammar{.program = "the program",
                                      .usage = "usage: the program [options]\n",
                                      .options = plan::PlanFlags(options)};
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, arguments, {}));
  if (!line.print.empty()) {
    return absl::InvalidArgumentError("--help and the like are for the program itself to answer");
  }
  MUSTER_ASSIGN_OR_RETURN(
      plan::ConfigReport report,
      plan::AddConfigFiles(grammar, options,
                           plan::ConfigFilesOnDisk(ranks.world_size, ranks.of_node), line));
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, plan::FinishPlanOptions(options)));
  MUSTER_RETURN_IF_ERROR(plan::CheckOffload(options));
  if (options.measures_unit_costs) {
    return absl::InvalidArgumentError(
        "--unit_costs=measured: muster-train alone measures; give the costs as UNITS:COST");
  }
  MUSTER_ASSIGN_OR_RETURN(const int stages, NumStages(options.plan, ranks.world_size));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(
      grammar, line,
      plan::SpreadBatch(options, ranks.world_size / stages / options.plan.tensor_ranks)));
  options.plan = CompletePlan(options.plan, ranks.of_node);
  MUSTER_ASSIGN_OR_RETURN(const plan::Mesh mesh,
                          plan::MeshOf(options.plan, stages, ranks.world_size));
  MUSTER_RETURN_IF_ERROR(plan::CheckReplicas(options.plan, mesh, options.replicas));
  PlanArguments asked = {.plan = options.plan,
                         .model = options.model,
                         .model_files = std::move(report.model.directory),
                         .adapters = options.adapters,
                         .dtype = options.dtype,
                         .device = options.device,
                         .batch_size = options.batch_size,
                         .steps = options.steps,
                         .notes = std::move(report.warnings)};
  for (const std::string& text : report.without_effect) {
    asked.notes.push_back(absl::StrCat("without effect: ", text));
  }
  return asked;
}

}  // namespace muster

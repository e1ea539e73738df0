#include "launcher/commands/plan_command.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"
#include "worker_runtime/advice/cheapest_fit.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/options/plan_flags.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::launcher {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;

constexpr char kUsage[] =
    "usage: muster plan [options]\n"
    "\n"
    "Prints what muster-train would do with the same options, and the memory and traffic it "
    "needs.\n"
    "Options are spelled with _ or -.\n";

command_line::Grammar PlanGrammar(advice::JobShape& shape, plan::PlanOptions& options) {
  command_line::Grammar grammar{.program = "muster plan", .usage = kUsage};
  grammar.options = {
      {.name = "world_size",
       .value_name = "N",
       .group = "Job",
       .help = "ranks of the job (1)",
       .read = command_line::IntoBetween(1, kMaxRanks, shape.world_size),
       .variables = {"WORLD_SIZE"}},
      {.name = "nproc_per_node",
       .value_name = "N",
       .group = "Job",
       .help = "ranks of a node, which share its memory (8, or all if they are fewer)",
       .read = command_line::IntoBetween(1, kMaxRanks, shape.ranks_of_node),
       .variables = {"LOCAL_WORLD_SIZE"}},
  };
  for (command_line::Option& option : plan::PlanFlags(options)) {
    const bool is_model = option.name == "model";
    const std::string group = option.group;
    grammar.options.push_back(std::move(option));
    if (!is_model) continue;
    grammar.options.push_back(
        {.name = "vocab_size",
         .value_name = "N",
         .group = group,
         .help = "number of different tokens (256: bytes)",
         .read = command_line::Into(command_line::ParseInt64, options.model.vocabulary),
         .other_names = {"vocabulary"},
         .field = "vocabulary"});
  }
  return grammar;
}

// By the fields of a plan, and for people.
plan::PlanSources SourcesOf(const command_line::Grammar& grammar,
                            const command_line::CommandLine& line,
                            const plan::ConfigReport& report) {
  plan::PlanSources sources;
  sources.without_effect = report.without_effect;
  for (const command_line::Option& option : grammar.options) {
    const auto source = report.sources.find(option.name);
    if (source == report.sources.end()) continue;
    const std::string& field = option.field.empty() ? option.name : option.field;
    const command_line::Given* const given = line.Find(option.name);
    const std::string from = absl::StartsWith(source->second, "--") || given == nullptr ||
                                     absl::StrContains(source->second, ": ")
                                 ? source->second
                                 : absl::StrCat("variable ", source->second);
    sources.by_field[field] = from;
    if (given != nullptr) {
      sources.given.push_back({option.name, absl::StrJoin(given->texts, " "), from});
    }
  }
  const auto plan_source = sources.by_field.find("preset");
  if (plan_source == sources.by_field.end()) return sources;
  for (const char* placed : {"parameters.placement", "gradients.placement", "optimizer.placement",
                             "gathering.reshard_after_forward", "gathering.prefetch_units",
                             "gathering.prefetch_elements", "gathering.max_live_elements",
                             "gathering.max_reuse_distance", "gathering.persistence_threshold"}) {
    sources.by_field.emplace(placed, absl::StrCat("the preset, ", plan_source->second));
  }
  return sources;
}

}  // namespace

absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args,
                                            std::vector<std::string>* warnings,
                                            const PlanSurroundings& surroundings) {
  advice::JobShape shape;
  plan::PlanOptions options;
  const command_line::Grammar grammar = PlanGrammar(shape, options);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, args, surroundings.environment));
  if (!line.print.empty()) return line.print;
  MUSTER_ASSIGN_OR_RETURN(const plan::ConfigReport report,
                          plan::AddConfigFiles(grammar, options, surroundings.files, line));
  if (warnings != nullptr) {
    *warnings = line.warnings;
    warnings->insert(warnings->end(), report.warnings.begin(), report.warnings.end());
  }
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, plan::FinishPlanOptions(options)));
  absl::StatusOr<plan::PlanPageInput> job = advice::PlanJob(options, shape);
  if (!job.ok()) {
    return command_line::InWordsOf(
        grammar, line,
        absl::Status(job.status().code(), absl::StripPrefix(job.status().message(), "plan: ")));
  }
  MUSTER_RETURN_IF_ERROR(advice::CheckOffload(*job));
  if (const int64_t limit = options.plan.memory_bytes_max; limit > 0) {
    MUSTER_RETURN_IF_ERROR(advice::CheckFits(*job, options, shape, limit));
  }
  job->sources = SourcesOf(grammar, line, report);
  if (job->reduction.chosen != GradientReduction::kChosen) {
    job->sources.by_field["gradient_reduction"] =
        absl::StrCat("chosen: ", job->reduction.reason);
  }
  return plan::FormatPlanPage(*job);
}

namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  return text;
}

}  // namespace

int PlanCommand(const Invocation& invocation) {
  std::vector<std::string> warnings;
  const absl::StatusOr<std::string> text = PlanCommandText(
      invocation.args, &warnings,
      {.environment = invocation.environment,
       .files = {.read_file = ReadFile, .home = VariableOrEmpty(invocation.environment, "HOME")}});
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "muster plan: %s\n", warning.c_str());
  }
  if (!text.ok()) {
    std::fprintf(stderr, "muster plan: %s\n", std::string(text.status().message()).c_str());
    return kExitUsage;
  }
  const bool printed = std::fputs(text->c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return printed ? 0 : kExitFailure;
}

}  // namespace muster::launcher

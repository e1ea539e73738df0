#include "launcher/commands/plan_command.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/cuda_device.h"
#include "muster/gpt.h"
#include "muster/parameter.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/options/plan_flags.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/gpt_parameters.h"
#include "worker_runtime/plan/plan_page.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::launcher {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr int64_t kUsualRanksOfNode = 8;

constexpr char kUsage[] =
    "usage: muster plan [options]\n"
    "\n"
    "Prints what muster-train would do with the same options, and the memory and traffic it "
    "needs.\n"
    "Options are spelled with _ or -.\n";

// `options` begin as a model of that name.
absl::Status TakeModel(const std::string& name, plan::PlanOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(options.model, plan::NamedGpt(name));
  return absl::OkStatus();
}

command_line::Grammar PlanGrammar(int64_t& world_size, int64_t& ranks_of_node,
                                  plan::PlanOptions& options) {
  command_line::Grammar grammar{.program = "muster plan", .usage = kUsage};
  grammar.options = {
      {.name = "world_size",
       .value_name = "N",
       .group = "Job",
       .help = "ranks of the job (1)",
       .read = command_line::IntoBetween(1, kMaxRanks, world_size)},
      {.name = "nproc_per_node",
       .value_name = "N",
       .group = "Job",
       .help = "ranks of a node, which share its memory (8, or all if they are fewer)",
       .read = command_line::IntoBetween(1, kMaxRanks, ranks_of_node)},
      {.name = "model",
       .value_name = "NAME",
       .group = "Job",
       .help = absl::StrCat("sizes of a known model: ", absl::StrJoin(plan::NamedGpts(), ", ")),
       .read = [&](const std::string& text) { return TakeModel(text, options); }},
      {.name = "vocab_size",
       .value_name = "N",
       .group = "Job",
       .help = "number of different tokens (256: bytes)",
       .read = command_line::Into(command_line::ParseInt64, options.model.vocabulary),
       .other_names = {"vocabulary"},
       .field = "vocabulary"},
  };
  for (command_line::Option& option : plan::PlanFlags(options)) {
    grammar.options.push_back(std::move(option));
  }
  return grammar;
}

// Sizes whose products would not fit 64 bits are mistakes. In double, which cannot overflow.
absl::Status CheckCountable(const plan::PlanOptions& options) {
  const GptConfig& model = options.model;
  const double rows = static_cast<double>(options.batch_size) * static_cast<double>(model.context);
  const double widest = 4.0 * static_cast<double>(model.hidden_size) * 16.0;
  const double bytes =
      8 * rows *
      (static_cast<double>(model.vocabulary) + widest + widest * static_cast<double>(model.layers));
  if (bytes <= static_cast<double>(int64_t{1} << 60)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a micro-batch of ", options.batch_size, " sequences of ", model.context,
      " tokens would take up to ", bytes, " bytes of activations; at most 2^60 can be planned"));
}

// The model is built, cut and run without any memory.
absl::StatusOr<std::string> FormatGptPlan(int64_t world_size, int64_t ranks_of_node,
                                          plan::PlanOptions options) {
  MUSTER_ASSIGN_OR_RETURN(const int stages, NumStages(options.plan, static_cast<int>(world_size)));
  options.plan.stages = stages;
  MUSTER_RETURN_IF_ERROR(plan::CheckGroups(
      options.plan, {.stages = stages, .replicas = static_cast<int>(world_size) / stages}));
  MUSTER_RETURN_IF_ERROR(CheckCountable(options));
  const bool on_gpus = options.device != "cpu";
  ParameterStore store(options.dtype);
  MUSTER_ASSIGN_OR_RETURN(const auto gpt, Gpt::Create(options.model, store));
  const ModelInput sample = engine::SampleInput(options.batch_size, options.model.context);
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, options.plan).status());
  MUSTER_ASSIGN_OR_RETURN(const PipelineCut cut,
                          engine::CutModel(store, options.plan, stages, gpt->Units(), sample));
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<plan::UseTrace> traces,
      engine::RecordStages(store, options.plan, cut, gpt->Units(), sample,
                           engine::MetaDevice(on_gpus, options.cuda_attention, options.plan.mode)));
  std::vector<plan::ParameterInfo> parameters = engine::InfoOf(store);
  const std::string text = plan::CanonicalText(options.plan, parameters, options.dtype);
  std::vector<plan::StageInfo> infos =
      engine::StagesOf(store, plan::PlanBlockLayout(parameters), cut, traces);
  return plan::FormatPlanPage({.options = options,
                               .world_size = world_size,
                               .ranks_of_node = ranks_of_node,
                               .gpu_bytes = on_gpus ? kCudaWorkspaceBytes : 0,
                               .pinned_bytes_max = on_gpus ? kCudaPinnedBytesMax : 0,
                               .hash = Sha256().Add(text).Finish(),
                               .unit_names = store.unit_names(),
                               .parameters = std::move(parameters),
                               .stages = std::move(infos)});
}

}  // namespace

absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args,
                                            std::vector<std::string>* warnings) {
  int64_t world_size = 1;
  plan::PlanOptions options;
  int64_t ranks_of_node = 0;
  const command_line::Grammar grammar = PlanGrammar(world_size, ranks_of_node, options);
  MUSTER_ASSIGN_OR_RETURN(const command_line::CommandLine line,
                          command_line::Split(grammar, args, {}));
  if (!line.print.empty()) return line.print;
  if (warnings != nullptr) *warnings = line.warnings;
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, plan::FinishPlanOptions(options)));
  if (ranks_of_node == 0) ranks_of_node = std::min<int64_t>(kUsualRanksOfNode, world_size);
  options.plan = CompletePlan(options.plan, ranks_of_node);
  return FormatGptPlan(world_size, ranks_of_node, options);
}

int PlanCommand(const Invocation& invocation) {
  std::vector<std::string> warnings;
  const absl::StatusOr<std::string> text = PlanCommandText(invocation.args, &warnings);
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

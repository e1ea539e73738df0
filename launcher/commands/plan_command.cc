#include "launcher/commands/plan_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/long_work.h"
#include "launcher/commands/plan_schedules.h"
#include "proto/base/exit_codes.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"
#include "proto/io/descriptors.h"
#include "worker_runtime/advice/advise.h"
#include "worker_runtime/advice/cheapest_fit.h"
#include "worker_runtime/advice/device_table.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/advice/rank_rates.h"
#include "worker_runtime/advice/step_time.h"
#include "worker_runtime/options/config_disk.h"
#include "worker_runtime/options/plan_flags.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::launcher {
namespace {

constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr absl::Duration kQuietPlanning = absl::Seconds(1);

constexpr char kUsage[] =
    "usage: muster plan [options]\n"
    "\n"
    "Prints what muster-train would do with the same options, and the memory and traffic it "
    "needs.\n"
    "Options are spelled with _ or -.\n";

// The options of --advise.
struct AdviceOptions {
  bool asked = false;
  std::string device;  // empty: the table's by its memory
  double memory_gib = 0;
  int64_t gpus = 0;  // of a node
  int64_t nodes = 1;
  std::string network = "100gbe";
  advice::HostFacts host;
};

std::function<absl::Status(const std::string&)> IntoPositive(double most, double& out) {
  return [most, &out](const std::string& text) -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(const double value, command_line::ParseNumber(text));
    if (!(value > 0 && value <= most)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a number above 0 and at most ", most));
    }
    out = value;
    return absl::OkStatus();
  };
}

std::vector<command_line::Option> AdviceRows(AdviceOptions& out) {
  using command_line::Into;
  std::vector<command_line::Option> rows = {
      {.name = "advise",
       .help = "print the quickest plan that fits, by predicted step time",
       .read = Into(command_line::ParseBool, out.asked)},
      {.name = "gpu",
       .value_name = "NAME",
       .help = absl::StrCat("the device: ", absl::StrJoin(advice::DeviceNames(), ", "),
                            " (the one with the most memory up to --gpu_memory)"),
       .read = Into(command_line::ParseName, out.device)},
      {.name = "gpu_memory",
       .value_name = "X",
       .help = "memory per device in GiB (the device's)",
       .read = IntoPositive(1 << 18, out.memory_gib)},
      {.name = "gpus",
       .value_name = "N",
       .help = "devices per node, one rank each (8)",
       .read = command_line::IntoBetween(1, kMaxRanks, out.gpus)},
      {.name = "nodes",
       .value_name = "N",
       .help = "number of nodes (1)",
       .read = command_line::IntoBetween(1, kMaxRanks, out.nodes)},
      {.name = "network",
       .value_name = "NAME",
       .help = absl::StrCat("network between nodes: ", absl::StrJoin(advice::NetworkNames(), ", "),
                            ", or Gbit/s per node (100gbe)"),
       .read = Into(command_line::ParseName, out.network)},
      {.name = "gemm_gflops",
       .value_name = "X",
       .help = "with --device=cpu: measured f32 GEMM rate of one core",
       .read = IntoPositive(1e9, out.host.gemm_gflops)},
      {.name = "link_gigabytes",
       .value_name = "X",
       .help = "with --device=cpu: measured GB/s from rank to rank",
       .read = IntoPositive(1e9, out.host.link_gigabytes)},
      {.name = "cores",
       .value_name = "N",
       .help = "with --device=cpu: cores per node, shared by its ranks (1)",
       .read = command_line::IntoBetween(1, kMaxRanks, out.host.cores)},
  };
  for (command_line::Option& row : rows) row.group = "Advice";
  return rows;
}

// The cores are shared where there are more ranks.
absl::Status AddHost(const AdviceOptions& asked, advice::AdviceInput& input) {
  const advice::HostFacts& host = asked.host;
  if (host.gemm_gflops <= 0 || host.link_gigabytes <= 0) {
    return absl::InvalidArgumentError(
        "step times with --device=cpu need --gemm_gflops=X and --link_gigabytes=X as measured on "
        "this machine (machine_rates, built from tests/bench, prints both); for GPUs add "
        "--device=cuda, or --gpu=NAME");
  }
  const int64_t ranks = input.shape.ranks_of_node;
  input.wide = advice::RatesOfHost(host, ranks);
  input.memory_bytes_max = input.options.plan.memory_bytes_max;
  if (input.memory_bytes_max == 0) {
    return absl::InvalidArgumentError("--advise with --device=cpu needs --memory_limit=X, in GiB");
  }
  input.devices = absl::StrCat(host.cores, " cores of ", host.gemm_gflops,
                               " GFLOP/s each, links of ", host.link_gigabytes, " GB/s",
                               advice::ShareOfCore(host, ranks) < 1
                                   ? absl::StrCat("; ", ranks, " ranks of a node share the cores")
                                   : "");
  return absl::OkStatus();
}

absl::StatusOr<advice::DeviceFacts> DeviceOf(const AdviceOptions& asked) {
  if (asked.device.empty()) {
    return advice::DeviceOfMemory(asked.memory_gib > 0 ? asked.memory_gib : 80);
  }
  absl::StatusOr<advice::DeviceFacts> found = advice::FindDevice(asked.device);
  if (!found.ok()) return command_line::At("--gpu", asked.device, found.status());
  if (asked.memory_gib > 0) found->memory_gib = asked.memory_gib;
  return found;
}

absl::Status AddGpus(const AdviceOptions& asked, advice::AdviceInput& input) {
  MUSTER_ASSIGN_OR_RETURN(const advice::DeviceFacts device, DeviceOf(asked));
  const absl::StatusOr<advice::NetworkFacts> network = advice::FindNetwork(asked.network);
  if (!network.ok()) return command_line::At("--network", asked.network, network.status());
  const double between = asked.nodes > 1 ? network->node_bandwidth : 0;
  input.narrow = advice::RatesOfGpu(device.narrow_flops, device, between);
  input.wide = advice::RatesOfGpu(device.wide_flops, device, between);
  input.memory_bytes_max = advice::UsableBytes(device);
  if (const int64_t limit = input.options.plan.memory_bytes_max; limit > 0) {
    input.memory_bytes_max = std::min(input.memory_bytes_max, limit);
  }
  input.options.device = "cuda";
  input.devices = absl::StrCat(
      device.name, " (", device.source, "), ", device.memory_gib,
      " GiB each of which 1 is CUDA's, products at half of the peak",
      asked.nodes > 1 ? absl::StrCat("; between nodes ", network->name, " (", network->source, ")")
                      : "");
  return absl::OkStatus();
}

absl::StatusOr<std::string> AdviceText(const AdviceOptions& asked, const advice::JobShape& shape,
                                       const plan::PlanOptions& options, bool is_on_gpus) {
  advice::AdviceInput input = {.options = options, .shape = shape};
  if (asked.gpus != 0 || (is_on_gpus && shape.world_size == 1)) {
    input.shape.ranks_of_node = asked.gpus == 0 ? 8 : asked.gpus;
    input.shape.world_size = input.shape.ranks_of_node * asked.nodes;
    if (input.shape.world_size > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nodes=", asked.nodes, ": with ", input.shape.ranks_of_node,
                       " ranks each there would be more than ", kMaxRanks, " ranks"));
    }
  } else if (shape.ranks_of_node == 0) {
    input.shape.ranks_of_node = shape.world_size / asked.nodes;
  }
  MUSTER_RETURN_IF_ERROR(is_on_gpus ? AddGpus(asked, input) : AddHost(asked, input));
  return advice::Advise(input);
}

// What a step of `job` takes by the rates of the devices that are named; empty where none are.
absl::StatusOr<std::string> StepTimeText(const AdviceOptions& asked,
                                         const plan::PlanPageInput& job) {
  const bool is_on_host = job.options.device == "cpu";
  if (is_on_host ? asked.host.gemm_gflops <= 0 : asked.device.empty() && asked.memory_gib <= 0) {
    return std::string();
  }
  advice::AdviceInput input = {
      .options = job.options,
      .shape = {.world_size = job.world_size, .ranks_of_node = job.ranks_of_node}};
  AdviceOptions named = asked;
  named.nodes = (job.world_size + job.ranks_of_node - 1) / job.ranks_of_node;
  input.options.plan.memory_bytes_max = GatherPlan::kNoLimit;
  MUSTER_RETURN_IF_ERROR(is_on_host ? AddHost(named, input) : AddGpus(named, input));
  const bool is_narrow = SizeOf(job.options.dtype) < SizeOf(DType::kF32);
  const advice::StepTime time = advice::PredictStepTime(
      job, plan::MemoryOfRank(job), is_narrow && !is_on_host ? input.narrow : input.wide);
  return absl::StrFormat(
      "\nstep time, predicted:\n  %-28s %s\n  %-28s %.4g ms\n  %-28s %.4g ms\n  %-28s %.4g ms\n"
      "  %-28s %.4g ms\n  %-28s %.4g ms, %.3g %% scaling\n",
      "by", input.devices, "computing", 1e3 * time.compute, "stages waiting", 1e3 * time.bubble,
      "communication not hidden", 1e3 * time.exposed, "update", 1e3 * time.update, "total",
      1e3 * time.total(), 100 * time.efficiency());
}

command_line::Grammar PlanGrammar(advice::JobShape& shape, AdviceOptions& advice,
                                  ScheduleOptions& schedules, plan::PlanOptions& options,
                                  bool& verbose) {
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
       .help = "ranks per node, which share its memory (8, or all if fewer)",
       .read = command_line::IntoBetween(1, kMaxRanks, shape.ranks_of_node),
       .variables = {"LOCAL_WORLD_SIZE"}},
      {.name = "verbose",
       .group = "Job",
       .help = "print every field of the plan, how parameters are gathered, and buckets too",
       .read = command_line::Into(command_line::ParseBool, verbose)},
  };
  for (command_line::Option& option : AdviceRows(advice)) {
    grammar.options.push_back(std::move(option));
  }
  for (command_line::Option& option : ScheduleRows(schedules)) {
    grammar.options.push_back(std::move(option));
  }
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

// The sources of values, by the fields of a plan and for people.
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
    if (given != nullptr && option.name == "mesh") {
      for (const auto& [name, of_plan] : {std::pair{"pp=", "stages"}, {"shard=", "shard_ranks"}}) {
        if (absl::StrContains(given->text(), name)) sources.by_field[of_plan] = from;
      }
    } else {
      sources.by_field[field] = from;
    }
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

// Those of --advise: what it varies is said as well, and is not what it keeps.
plan::PlanSources SourcesOfAdvice(plan::PlanSources sources) {
  for (plan::GivenValue& given : sources.given) {
    if (advice::VariesOption(given.option))
      absl::StrAppend(&given.source, "; --advise tries others");
  }
  return sources;
}

// What is printed is advice, schedules or the plan.
absl::Status CheckOnePage(bool advises, const ScheduleOptions& schedules,
                          const command_line::CommandLine& line) {
  if (!schedules.asked.empty()) {
    if (!advises) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--advise and --pipeline_schedule each print a page of their own; give one of them");
  }
  for (const char* name : {"schedule_form", "pass_costs"}) {
    if (line.Find(name) == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is about --pipeline_schedule, which is not given"));
  }
  return absl::OkStatus();
}

// `sources` are those of the options' values.
absl::StatusOr<std::string> AdvicePage(const AdviceOptions& asked, const advice::JobShape& shape,
                                       const plan::PlanOptions& options,
                                       const plan::PlanSources& sources) {
  const bool names_gpus = !asked.device.empty() || asked.memory_gib > 0 || asked.gpus > 0;
  MUSTER_ASSIGN_OR_RETURN(
      const std::string advice,
      AdviceText(asked, shape, options, names_gpus || options.device == "cuda"));
  return advice + plan::SourcesText(SourcesOfAdvice(sources));
}

// What a GPU that is named holds, beside --memory_limit, which refuses what it does not.
absl::StatusOr<std::string> FitsText(const plan::PlanPageInput& job,
                                     const plan::PlanOptions& options,
                                     const advice::JobShape& shape, const AdviceOptions& asked) {
  int64_t most = options.plan.memory_bytes_max;
  std::string holder = "--memory_limit";
  if (job.options.device != "cpu" && (!asked.device.empty() || asked.memory_gib > 0)) {
    MUSTER_ASSIGN_OR_RETURN(const advice::DeviceFacts device, DeviceOf(asked));
    const int64_t usable = advice::UsableBytes(device);
    if (most == 0 || usable < most) holder = device.name;
    most = most == 0 ? usable : std::min(most, usable);
  }
  if (most == 0) return std::string();
  const absl::Status fits = advice::CheckFits(job, options, shape, most);
  return fits.ok() ? absl::StrCat("it fits in the ", plan::ReadableBytes(most), " of ", holder)
                   : absl::StrCat("it does not fit: ", fits.message());
}

// What is printed of a planned job; an error if it is to take less.
absl::StatusOr<std::string> PlanPage(plan::PlanPageInput job, const plan::PlanOptions& options,
                                     const advice::JobShape& shape, const AdviceOptions& asked) {
  MUSTER_RETURN_IF_ERROR(advice::CheckOffload(job));
  if (const int64_t limit = options.plan.memory_bytes_max; limit > 0) {
    MUSTER_RETURN_IF_ERROR(advice::CheckFits(job, options, shape, limit));
  }
  if (job.reduction.chosen != GradientReduction::kChosen) {
    job.sources.by_field["gradient_reduction"] = absl::StrCat("chosen: ", job.reduction.reason);
  }
  MUSTER_ASSIGN_OR_RETURN(job.fits, FitsText(job, options, shape, asked));
  MUSTER_ASSIGN_OR_RETURN(const std::string page, plan::FormatPlanPage(job));
  MUSTER_ASSIGN_OR_RETURN(const std::string step_time, StepTimeText(asked, job));
  return page + step_time;
}

}  // namespace

absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args,
                                            std::vector<std::string>* warnings,
                                            const PlanSurroundings& surroundings) {
  advice::JobShape shape;
  AdviceOptions asked;
  ScheduleOptions schedules;
  plan::PlanOptions options;
  bool verbose = false;
  const command_line::Grammar grammar = PlanGrammar(shape, asked, schedules, options, verbose);
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
  MUSTER_RETURN_IF_ERROR(CheckOnePage(asked.asked, schedules, line));
  if (!schedules.asked.empty()) {
    return ScheduleText(schedules, options, shape.world_size, line, surroundings.files);
  }
  if (asked.asked) {
    return AdvicePage(asked, shape, options, SourcesOf(grammar, line, report));
  }
  absl::StatusOr<plan::PlanPageInput> job = advice::PlanJob(options, shape);
  if (!job.ok()) {
    return command_line::InWordsOf(grammar, line, WithoutBeginning("plan: ", job.status()));
  }
  job->sources = SourcesOf(grammar, line, report);
  job->verbose = verbose;
  return PlanPage(*std::move(job), options, shape, asked);
}

int PlanCommand(const Invocation& invocation) {
  std::vector<std::string> warnings;
  absl::StatusOr<std::string> text;
  {
    const LongWork work(kQuietPlanning, [] {
      std::fputs("muster plan: compiling; thousands of layers and micro-batches take a while\n",
                 stderr);
    });
    text = PlanCommandText(
        invocation.args, &warnings,
        {.environment = invocation.environment, .files = plan::ConfigFilesOnDisk(1, 1)});
  }
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "muster plan: %s\n", warning.c_str());
  }
  if (!text.ok()) {
    std::fprintf(stderr, "muster plan: %s\n", std::string(text.status().message()).c_str());
    return kExitUsage;
  }
  const std::string shown = TextFor(STDOUT_FILENO, *text);
  const bool printed = std::fputs(shown.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return printed ? 0 : kExitFailure;
}

}  // namespace muster::launcher

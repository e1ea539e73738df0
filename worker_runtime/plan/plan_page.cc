#include "worker_runtime/plan/plan_page.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/plan/mesh_page.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/prove_schedule.h"
#include "worker_runtime/plan/schedules/schedule_page.h"
#include "worker_runtime/plan/stage_cut.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {
namespace {

constexpr size_t kBucketsPerLine = 8;
constexpr double kMostTokens = 1e15;

// 10745088 as 10,745,088.
std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int64_t place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(place, ",");
  }
  return digits;
}

// Three digits and a unit.
std::string Rounded(double number, double base, const std::vector<const char*>& units) {
  size_t unit = 0;
  while (number >= 999.5 && unit + 1 < units.size()) {
    number /= base;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", number, units[unit]);
}

std::string Flops(double flops) {
  return Rounded(flops, 1000, {"FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"});
}

void Heading(std::string& page, absl::string_view text) {
  absl::StrAppend(&page, "\n", text, "\n");
}

void ByteLine(std::string& page, absl::string_view name, int64_t bytes) {
  absl::StrAppendFormat(&page, "  %-28s %10s   %s bytes\n", name, ReadableBytes(bytes),
                        Grouped(bytes));
}

std::string AnswerText(const PlanPageInput& input, const RankMemory& memory) {
  return absl::StrCat("each rank takes ", ReadableBytes(memory.total()), " and sends ",
                      ReadableBytes(memory.figures.sent_total()), " per step",
                      input.fits.empty() ? "" : "; ", input.fits, "\n\n");
}

void AppendModel(const PlanPageInput& input, std::string& page) {
  const PlanOptions& options = input.options;
  const DecoderConfig& model = options.model;
  absl::StrAppend(&page, "model: ", NameOf(model), " of ", model.layers, " layers, ",
                  DescribeHeads(model), ", hidden size ", model.hidden_size, ", context ",
                  model.context, ", vocabulary ", model.vocabulary, ", in ",
                  ToString(options.dtype), "\n");
  ValueLine(page, "parameters", Grouped(model.num_parameters()));
  if (input.options.adapters.rank > 0) {
    int64_t learned = 0;
    for (const ParameterInfo& parameter : input.parameters) learned += parameter.num_learned();
    ValueLine(page, "adapters",
              absl::StrCat("of rank ", options.adapters.rank, " beside ", options.adapters.beside,
                           ": ", Grouped(learned), " parameters in ",
                           ToString(options.adapters_dtype()), ", which learn alone"));
  }
  ValueLine(page, "work per token", Flops(options.model.flops_per_token()));
}

void AppendPlan(const PlanPageInput& input, std::string& page) {
  Heading(page, absl::StrCat("plan, for ", Grouped(input.world_size),
                             input.world_size == 1 ? " rank:" : " ranks:"));
  for (const auto& [key, value] : Describe(input.options.plan)) {
    const auto source = input.sources.by_field.find(key);
    const bool is_default = source == input.sources.by_field.end();
    if (is_default && !input.verbose && key != "preset") continue;
    const std::string shown =
        key == "schedule" ? NameOfSchedule(input.options.plan.schedule) : value;
    absl::StrAppendFormat(&page, "  %-28s %-16s  %s\n", key, shown,
                          is_default ? "default" : source->second);
  }
  if (!input.verbose) ValueLine(page, "all else", "default; --verbose shows it");
  ValueLine(page, "hash", input.hash);
}

void AppendOffload(const PlanOptions& options, std::string& page) {
  for (const auto& [name, residency] : {std::pair{"optimizer", options.offload.optimizer},
                                        {"parameters", options.offload.parameters}}) {
    if (residency == Residency::kDevice) continue;
    ValueLine(page, absl::StrCat("offloaded ", name),
              "to the host, which on the cpu device is where they lie already: nothing changes");
  }
}

absl::Status AppendStep(const PlanPageInput& input, std::string& page) {
  const PlanOptions& options = input.options;
  const double tokens =
      static_cast<double>(input.replicas()) * static_cast<double>(options.plan.accumulation) *
      static_cast<double>(options.batch_size) * static_cast<double>(options.model.context);
  if (tokens > kMostTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step would have ", tokens, " tokens (", input.replicas(),
        input.stages.size() > 1 ? " replicas, " : " ranks, ", options.plan.accumulation,
        " micro-batches each, ", options.batch_size, " sequences each, ", options.model.context,
        " tokens each); at most ", kMostTokens, " can be planned"));
  }
  Heading(page, "step:");
  ValueLine(page, "sequences",
            absl::StrCat(Grouped(input.replicas() * options.plan.accumulation * options.batch_size),
                         " = ", options.batch_size, " per micro-batch x ",
                         options.plan.accumulation, " micro-batches x ", input.replicas(),
                         input.stages.size() > 1 ? " replicas" : " ranks"));
  ValueLine(page, "micro-batches per rank", Grouped(options.plan.accumulation));
  ValueLine(page, "sequences per micro-batch", Grouped(options.batch_size));
  ValueLine(page, "tokens", Grouped(static_cast<int64_t>(tokens)));
  ValueLine(
      page, "work per rank",
      Flops(options.model.flops_per_token() * tokens / static_cast<double>(input.world_size)));
  ValueLine(page, "steps", Grouped(options.steps));
  return absl::OkStatus();
}

// What a rank takes for `program`.
RankMemory MemoryOf(const PlanPageInput& input, const Program& program) {
  const auto of_node = static_cast<int>(input.ranks_of_node);
  RankMemory memory = {FiguresOf(program), ExchangeMemoryOf(program, of_node).total(),
                       input.gpu_bytes};
  const PlanOptions& options = input.options;
  if (memory.gpu > 0) {
    At(memory.figures.peak, Arena::kBuffers) +=
        BytesOfBatches(options.batch_size * options.model.context * options.plan.accumulation);
  }
  return memory;
}

// Appends the memory of a rank; in a pipeline, that of the rank that needs most.
void AppendMemory(const PlanPageInput& input, const RankMemory& memory, std::string& page) {
  const bool is_pipeline = input.stages.size() > 1;
  const bool on_gpu = memory.gpu > 0;
  Heading(page, absl::StrCat(on_gpu ? "memory of the GPU" : "memory",
                             is_pipeline ? " of the rank that needs most:" : " per rank:"));
  for (int i = 0; i < kNumArenas; ++i) {
    const auto arena = static_cast<Arena>(i);
    const int64_t bytes = At(memory.figures.peak, arena);
    const bool is_special =
        arena == Arena::kPartialSums || arena == Arena::kGathered || arena == Arena::kUnreduced;
    if (bytes > 0 || !is_special) ByteLine(page, ToString(arena), bytes);
  }
  if (on_gpu) ByteLine(page, "products (cuBLASLt)", memory.gpu);
  if (memory.exchange > 0 && !on_gpu) ByteLine(page, "exchange between ranks", memory.exchange);
  ByteLine(page, "total", memory.total());
  if (!on_gpu) return;
  const CudaAttention attention = input.options.cuda_attention;
  const bool is_auto = attention == CudaAttention::kAuto;
  if (attention == CudaAttention::kCudnn ||
      (is_auto && input.options.plan.mode != SumMode::kOrdered)) {
    ValueLine(page, "attention",
              is_auto ? "by cuDNN where it is there, in memory among the activations"
                      : "by cuDNN, which works in memory among the activations");
  }
  ValueLine(page, "not in it", "CUDA's own, and with --backend=nccl NCCL's");
  Heading(page, "memory of the host per rank:");
  ByteLine(page, "pinned for copies, at most", input.pinned_bytes_max);
  if (memory.exchange > 0) ByteLine(page, "exchange between ranks, gloo", memory.exchange);
}

void AppendBuckets(absl::Span<const Bucket> buckets, int64_t element_bytes, std::string& page) {
  Heading(page, absl::StrCat("buckets of gradients, in the order of their reduction: ",
                             Grouped(static_cast<int64_t>(buckets.size()))));
  // Blocks are alike, so the first lines tell the rest.
  const size_t shown = std::min(buckets.size(), 4 * kBucketsPerLine);
  for (size_t i = 0; i < shown; ++i) {
    const bool ends_line = (i + 1) % kBucketsPerLine == 0 || i + 1 == shown;
    absl::StrAppend(&page, i % kBucketsPerLine == 0 ? "  " : ", ",
                    ReadableBytes(buckets[i].blocks.num_elements() * element_bytes),
                    ends_line ? "\n" : "");
  }
  if (shown < buckets.size()) {
    absl::StrAppend(&page, "  ... and ", Grouped(static_cast<int64_t>(buckets.size() - shown)),
                    " more; the last ",
                    ReadableBytes(buckets.back().blocks.num_elements() * element_bytes), "\n");
  }
}

void AppendWire(const StepFigures& figures, std::string& page) {
  Heading(page, "sent per rank and step:");
  const auto sent = [&](ActionKind kind) { return figures.sent[static_cast<size_t>(kind)]; };
  ByteLine(page, "gradients", sent(ActionKind::kReduce));
  if (sent(ActionKind::kReplicate) > 0) {
    ByteLine(page, "gradients, to replicas", sent(ActionKind::kReplicate));
  }
  if (sent(ActionKind::kCombine) > 0) {
    ByteLine(page, "activations, to tensor ranks", sent(ActionKind::kCombine));
  }
  if (sent(ActionKind::kUnshard) > 0) ByteLine(page, "parameters", sent(ActionKind::kUnshard));
  if (sent(ActionKind::kSend) > 0) ByteLine(page, "to other stages", sent(ActionKind::kSend));
  if (sent(ActionKind::kSquares) > 0)
    ByteLine(page, "parts of the norm", sent(ActionKind::kSquares));
  ByteLine(page, "loss and tokens", sent(ActionKind::kLoss) + sent(ActionKind::kShareLoss));
  ByteLine(page, "total", figures.sent_total());
}

// How often units are gathered, and how much of them lies there at once.
void AppendGathering(const Program& program, std::string& page) {
  int64_t num_units = 0;
  int64_t num_sharded = 0;
  int64_t sharded = 0;
  for (int u = 0; u < static_cast<int>(program.bucket_of_unit[false].size()); ++u) {
    int64_t elements = 0;
    for (const int b : BucketsOfUnit(program, u)) {
      const Bucket& bucket = program.buckets[b];
      if (bucket.gathered) elements += bucket.blocks.num_elements();
    }
    if (HoldsUnit(program, u)) ++num_units;
    if (elements > 0) ++num_sharded;
    sharded += elements;
  }
  if (num_sharded == 0) return;
  int64_t num_gathers = 0;
  for (const Action& action : program.actions) {
    const Unshard* const unshard = action.If<Unshard>();
    if (unshard != nullptr && unshard->place != kNone) ++num_gathers;
  }
  Heading(page, "gathering of parameters:");
  ValueLine(page, "units at rest as shards", absl::StrCat(num_sharded, " of ", num_units));
  ValueLine(page, "ranks of a shard group", absl::StrCat(program.mesh.SizeOf(kShards)));
  if (const int few = program.mesh.SizeOf(Dimension::kSecondary); few > 1) {
    ValueLine(page, "ranks of a secondary one", absl::StrCat(few));
  }
  ValueLine(page, "gathers in a step", Grouped(num_gathers));
  ValueLine(page, "elements at once, at most", Grouped(program.live_elements));
  if (num_sharded == 1 || program.live_elements < sharded) return;
  absl::StrAppend(&page,
                  "  All of them are gathered at once: --max_live_parameters or "
                  "--max_reuse_distance\n  below ",
                  Grouped(sharded), " gives units up between their uses.\n");
}

Mesh MeshOfJob(const PlanPageInput& input) {
  const absl::StatusOr<Mesh> mesh = MeshOf(input.options.plan, static_cast<int>(input.places()),
                                           static_cast<int>(input.world_size));
  MUSTER_CHECK(mesh.ok());  // the job was planned with it
  return *mesh;
}

ProgramInput InputOf(const PlanPageInput& input, const Plan& plan) {
  return {.plan = plan,
          .parameters = input.parameters,
          .types = TypesOf(plan, input.parameters),
          .mesh = MeshOfJob(input),
          .stages = input.stages};
}

// The units of a stage, in turn.
std::vector<int> UnitsOf(const BlockLayout& layout, const StageInfo& stage) {
  std::vector<int> units;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const bool is_of_stage = layout.units[u].Overlaps(stage.blocks) ||
                             layout.frozen_units[u].Overlaps(stage.frozen_blocks);
    if (is_of_stage) units.push_back(static_cast<int>(u));
  }
  return units;
}

// "h.2 to h.5"
std::string NameOf(const PlanPageInput& input, const std::vector<int>& units) {
  const std::string& first = input.unit_names[units.front()];
  return units.size() == 1 ? first : absl::StrCat(first, " to ", input.unit_names[units.back()]);
}

// What part of a micro-batch's time each stage takes; empty where no costs are given.
std::vector<double> SharesOfStages(const PlanPageInput& input, const BlockLayout& layout) {
  const std::vector<UnitCost>& given = input.options.plan.unit_costs;
  if (given.empty()) return {};
  const absl::StatusOr<std::vector<double>> costs = CostsOfUnits(given, input.unit_names, {});
  MUSTER_CHECK(costs.ok());  // the model was cut by them
  const double all = std::accumulate(costs->begin(), costs->end(), 0.0);
  if (!(all > 0)) return {};
  std::vector<double> shares;
  for (const StageInfo& stage : input.stages) {
    shares.push_back(0);
    for (const int unit : UnitsOf(layout, stage)) shares.back() += (*costs)[unit] / all;
  }
  return shares;
}

// The costs of stages with such shares, in thousandths.
PassCosts CostsOf(const std::vector<double>& shares) {
  PassCosts costs;
  for (const double share : shares) {
    costs.times_of_stage.push_back(std::max<int64_t>(1, std::llround(1000 * share)));
  }
  return costs;
}

std::string OrderText(const std::string& schedule) {
  return schedule == Plan().schedule ? "one forward, one backward" : schedule;
}

void AppendStages(const PlanPageInput& input, std::string& page) {
  if (input.stages.size() == 1) return;
  const ProgramInput program_input = InputOf(input);
  const BlockLayout layout = PlanBlockLayout(input.parameters);
  const absl::StatusOr<Schedule> schedule =
      ScheduleOf(input.options.plan, program_input.mesh.places());
  MUSTER_CHECK(schedule.ok());
  const auto num_stages = static_cast<int64_t>(input.stages.size());
  Heading(page, absl::StrCat("pipeline of ", num_stages, " stages, ", OrderText(schedule->name),
                             ", each of ", input.replicas(),
                             input.replicas() == 1 ? " rank:" : " ranks:"));
  const std::vector<double> shares = SharesOfStages(input, layout);
  for (int s = 0; s < num_stages; ++s) {
    const StageInfo& stage = input.stages[s];
    const int rank = RankThatNeedsMost(program_input, schedule->rank_of_stage[s]);
    const RankMemory memory = MemoryOf(input, CompileProgram(program_input, rank));
    const std::vector<int> units = UnitsOf(layout, stage);
    ValueLine(page, absl::StrCat("stage ", s, ", ", NameOf(input, units)),
              absl::StrCat(
                  ReadableBytes(memory.total()), " of memory, ",
                  ReadableBytes(memory.figures.sent_total()), " sent per rank and step",
                  shares.empty() ? "" : absl::StrFormat(", %.3g %% of the time", 100 * shares[s])));
  }
  ByteLine(page, "handed on per micro-batch", input.stages[1].received_bytes);
  if (schedule->num_passes() > kMostPasses) return;
  const absl::StatusOr<ScheduleProof> proof = ProveSchedule(*schedule, CostsOf(shares));
  MUSTER_CHECK(proof.ok());
  const Fraction idle = proof->idle_share();
  const double percent =
      100.0 * static_cast<double>(idle.numerator) / static_cast<double>(idle.denominator);
  ValueLine(page, "time that stages wait",
            shares.empty() ? absl::StrFormat("%s of a step (%.3g %%), if passes take alike long",
                                             ToString(idle), percent)
                           : absl::StrFormat("%.3g %% of a step, by --unit_costs", percent));
}

bool HasReductionChoice(const PlanPageInput& input) {
  const Plan& plan = input.options.plan;
  return NeedsUses(plan, InputOf(input, plan).mesh) && plan.accumulation > 1 &&
         plan.mode != SumMode::kOrdered;
}

RankMemory MemoryWith(const PlanPageInput& input, GradientReduction reduction) {
  Plan plan = input.options.plan;
  plan.gradient_reduction = reduction;
  const ProgramInput program_input = InputOf(input, plan);
  return MemoryOf(input, CompileProgram(program_input, RankThatNeedsMost(program_input)));
}

// What the choice of when to reduce is between.
void AppendReduction(const PlanPageInput& input, std::string& page) {
  if (!HasReductionChoice(input)) return;
  Heading(page, "sharded gradients are reduced:");
  const bool is_open = input.options.plan.gradient_reduction == GradientReduction::kChosen;
  const ReductionChoice choice =
      is_open ? DecideReduction(input)
      : input.reduction.chosen != GradientReduction::kChosen
          ? input.reduction
          : ReductionChoice{input.options.plan.gradient_reduction, "the plan says so"};
  for (const GradientReduction reduction :
       {GradientReduction::kEachMicroBatch, GradientReduction::kOnce}) {
    const RankMemory memory = MemoryWith(input, reduction);
    ValueLine(page,
              reduction == GradientReduction::kEachMicroBatch ? "with each micro-batch"
                                                              : "once, held whole before",
              absl::StrCat(
                  ReadableBytes(memory.total()), " of memory, ",
                  ReadableBytes(memory.figures.sent_total()), " sent",
                  reduction == choice.chosen ? absl::StrCat("  <- chosen: ", choice.reason) : ""));
  }
}

}  // namespace

std::string ReadableBytes(int64_t bytes) {
  return Rounded(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"});
}

absl::StatusOr<std::string> FormatPlanPage(const PlanPageInput& input) {
  const PlanOptions& options = input.options;
  std::string page;
  AppendModel(input, page);
  AppendPlan(input, page);
  page += MeshPage(MeshOfJob(input), static_cast<int>(input.ranks_of_node));
  MUSTER_RETURN_IF_ERROR(AppendStep(input, page));
  AppendStages(input, page);
  const Program program = ProgramOf(input);
  const RankMemory memory = MemoryOf(input, program);
  AppendOffload(options, page);
  AppendMemory(input, memory, page);
  if (input.verbose) AppendGathering(program, page);
  AppendReduction(input, page);
  if (input.verbose) {
    AppendBuckets(LearnedBuckets(program), BytesOf(program.types.gradients), page);
  }
  AppendWire(memory.figures, page);
  return AnswerText(input, memory) + page + SourcesText(input.sources);
}

std::string SourcesText(const PlanSources& sources) {
  std::string text;
  if (!sources.given.empty()) {
    Heading(text, "said by options, files and variables; all else is a default:");
    for (const GivenValue& given : sources.given) {
      absl::StrAppendFormat(&text, "  %-28s %-16s  %s\n", given.option, given.value, given.source);
    }
  }
  if (sources.without_effect.empty()) return text;
  Heading(text, "keys of files that are accepted and change nothing:");
  for (const std::string& line : sources.without_effect) absl::StrAppend(&text, "  ", line, "\n");
  return text;
}

ProgramInput InputOf(const PlanPageInput& input) { return InputOf(input, input.options.plan); }

Program ProgramOf(const PlanPageInput& input) {
  const ProgramInput program_input = InputOf(input);
  return CompileProgram(program_input, RankThatNeedsMost(program_input));
}

ReductionChoice DecideReduction(const PlanPageInput& input) {
  if (!HasReductionChoice(input) ||
      input.options.plan.gradient_reduction != GradientReduction::kChosen) {
    return {.chosen = GradientReduction::kChosen};
  }
  return ReductionOf(InputOf(input));
}

absl::Status CheckOffload(const PlanOptions& options, const PlanPageInput* job) {
  const bool on_host = options.device == "cpu";
  const auto check = [&](absl::string_view option, Residency residency,
                         Arena arena) -> absl::Status {
    const bool to_host = residency == Residency::kCpu;
    // If the host is the device, its memory is where states are already.
    if (residency == Residency::kDevice || (on_host && to_host)) return absl::OkStatus();
    const std::string held =
        job == nullptr
            ? ""
            : absl::StrCat(" (", ReadableBytes(At(MemoryOfRank(*job).figures.peak, arena)),
                           " per rank)");
    return absl::UnimplementedError(
        absl::StrCat("--", option, "=", ToString(residency), ": this version cannot offload ",
                     arena == Arena::kOptimizer ? "the optimizer" : "parameters", held, "; give --",
                     option, "=none, and more ranks or --recompute=full where that does not fit",
                     to_host ? ", or train on the host with --device=cpu" : ""));
  };
  MUSTER_RETURN_IF_ERROR(check("offload_optimizer", options.offload.optimizer, Arena::kOptimizer));
  return check("offload_parameters", options.offload.parameters, Arena::kParameters);
}

RankMemory MemoryOfRank(const PlanPageInput& input) { return MemoryOf(input, ProgramOf(input)); }

}  // namespace muster::plan

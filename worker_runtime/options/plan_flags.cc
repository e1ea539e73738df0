#include "worker_runtime/options/plan_flags.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/field_error.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"
#include "worker_runtime/options/config_files.h"
#include "worker_runtime/options/mesh_option.h"
#include "worker_runtime/options/model_config.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/plan/plan_text.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster::plan {
namespace {

using command_line::AddTo;
using command_line::Into;
using command_line::IntoBetween;
using command_line::Option;
using command_line::ParseBool;
using command_line::ParseChoice;
using command_line::ParseInt64;
using command_line::ParseNumber;
using command_line::ParseUint64;

constexpr int64_t kMostSequences = int64_t{1} << 20;
constexpr int64_t kMostMicroBatches = int64_t{1} << 20;

std::string Default(const auto& value) { return absl::StrCat(" (", value, ")"); }

// "fast or ordered": the choices are what ToString calls them.
template <typename Value>
absl::StatusOr<Value> ParseNamed(const std::string& text, const std::vector<Value>& values) {
  std::vector<std::pair<std::string, Value>> choices;
  choices.reserve(values.size());
  for (const Value value : values) choices.emplace_back(ToString(value), value);
  return ParseChoice(text, choices);
}

absl::StatusOr<SumMode> ParseMode(const std::string& text) {
  return ParseNamed<SumMode>(text, {SumMode::kFast, SumMode::kOrdered});
}

absl::StatusOr<LearningRateSchedule::Kind> ParseRateSchedule(const std::string& text) {
  using Kind = LearningRateSchedule::Kind;
  return ParseNamed<Kind>(
      text, {Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWarmup, Kind::kWarmupDecay});
}

absl::StatusOr<LearningRateSchedule::Rise> ParseRise(const std::string& text) {
  using Rise = LearningRateSchedule::Rise;
  return ParseNamed<Rise>(text, {Rise::kLog, Rise::kLinear});
}

absl::StatusOr<UpdateRule::Kind> ParseOptimizer(const std::string& text) {
  using Kind = UpdateRule::Kind;
  return ParseNamed<Kind>(text, {Kind::kAdamW, Kind::kAdam, Kind::kSgd});
}

// "none", one of the two algorithms, or a number that stays.
absl::StatusOr<LossScaling> ParseLossScale(const std::string& text) {
  if (text == "none") return LossScaling();
  if (text == "deepspeed") return LossScaling::DeepSpeed();
  if (text == "torch") return LossScaling::Torch();
  const absl::StatusOr<double> scale = ParseNumber(text);
  if (scale.ok()) return LossScaling::Static(*scale);
  return absl::InvalidArgumentError(absl::StrCat("expected none, deepspeed, torch or a number",
                                                 DidYouMean(text, {"none", "deepspeed", "torch"})));
}

absl::Status ReadGroupSetting(absl::string_view key, const std::string& value,
                              ParameterGroup& group) {
  const std::vector<std::string> known = {"frozen", "lr_scale", "weight_decay", "beta1", "beta2"};
  if (key == "frozen" && value.empty()) {
    group.frozen = true;
    return absl::OkStatus();
  }
  if (key == "frozen" || std::find(known.begin(), known.end(), key) == known.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected PATTERN:SETTING,... with the settings frozen, lr_scale=X, "
                     "weight_decay=X, beta1=X and beta2=X, not '",
                     key, "'", DidYouMean(key, known)));
  }
  MUSTER_ASSIGN_OR_RETURN(const double number, ParseNumber(value));
  if (key == "lr_scale") group.learning_rate_scale = number;
  if (key == "weight_decay") group.weight_decay = number;
  if (key == "beta1") group.beta1 = number;
  if (key == "beta2") group.beta2 = number;
  return absl::OkStatus();
}

// "h.0.*:lr_scale=0.1,weight_decay=0"
absl::StatusOr<ParameterGroup> ParseGroup(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  ParameterGroup group = {.parameters = parts.first};
  for (const absl::string_view setting : absl::StrSplit(parts.second, ',')) {
    const std::pair<std::string, std::string> words =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    MUSTER_RETURN_IF_ERROR(ReadGroupSetting(words.first, words.second, group));
  }
  return group;
}

absl::StatusOr<ParameterGroup> ParseFrozen(const std::string& text) {
  return ParameterGroup{.parameters = text, .frozen = true};
}

// "measured", or "h.*:12"
absl::Status ReadUnitCost(const std::string& text, PlanOptions& options) {
  if (text == "measured") {
    options.measures_unit_costs = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<UnitCost> cost = ParseUnitCost(text);
  if (!cost.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(cost.status().message(), ", or measured", DidYouMean(text, {"measured"})));
  }
  options.plan.unit_costs.push_back(*cost);
  return absl::OkStatus();
}

// "8" or "8:h.*.c_*.weight"
absl::StatusOr<DecoderAdapters> ParseAdapters(const std::string& text) {
  DecoderAdapters adapters;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const absl::StatusOr<int64_t> rank = ParseInt64(parts.first);
  if (!rank.ok() || *rank < 1) {
    return absl::InvalidArgumentError(
        "expected a rank of 1 or more, and behind a colon which matrices get an adapter, such as "
        "8 or 8:h.*.c_*.weight");
  }
  adapters.rank = *rank;
  if (!parts.second.empty()) adapters.beside = parts.second;
  return adapters;
}

absl::StatusOr<Recompute::Kind> ParseRecompute(const std::string& text) {
  using Kind = Recompute::Kind;
  return ParseNamed<Kind>(text, {Kind::kNone, Kind::kSelective, Kind::kFull});
}

// "f32", and what other programs call it.
absl::StatusOr<DType> ParseDType(const std::string& text) {
  for (const auto& [name, dtype] : {std::pair{"fp32", DType::kF32},
                                    {"float32", DType::kF32},
                                    {"bfloat16", DType::kBf16},
                                    {"fp16", DType::kF16},
                                    {"float16", DType::kF16},
                                    {"fp64", DType::kF64},
                                    {"float64", DType::kF64}}) {
    if (text == name) return dtype;
  }
  return ParseChoice<DType>(
      text,
      {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"f16", DType::kF16}, {"f64", DType::kF64}});
}

absl::StatusOr<std::string> ParseDevice(const std::string& text) {
  return ParseChoice<std::string>(text, {{"cpu", "cpu"}, {"cuda", "cuda"}});
}

absl::StatusOr<CudaAttention> ParseAttention(const std::string& text) {
  using Attention = CudaAttention;
  return ParseNamed<Attention>(text, {Attention::kOwn, Attention::kCudnn, Attention::kAuto});
}

absl::Status CheckDevice(const PlanOptions& options) {
  if (options.device != "cpu" && options.dtype == DType::kF64) {
    return FieldError("--device",
                      "=cuda computes in f32, bf16 and f16, not in f64; try --dtype=f32");
  }
  if (options.cuda_attention != CudaAttention::kCudnn) return absl::OkStatus();
  const auto refuse = [&](const auto&... why) {
    return FieldError("--cuda_attention",
                      absl::StrCat("=", ToString(options.cuda_attention), why...));
  };
  if (options.device == "cpu") return refuse(" is of GPUs; add --device=cuda, or leave it out");
  if (SizeOf(options.dtype) < SizeOf(DType::kF32)) return absl::OkStatus();
  return refuse(": cuDNN computes attention in bf16 and f16, not in ", ToString(options.dtype),
                "; try --dtype=bf16");
}

absl::Status CheckAdaptersType(const PlanOptions& options) {
  if (!options.adapters.dtype) return absl::OkStatus();
  const auto refuse = [&](const auto&... why) {
    return FieldError("--lora_dtype", absl::StrCat("=", ToString(*options.adapters.dtype), why...));
  };
  if (options.adapters.rank == 0) {
    return refuse(": there are no adapters; add --lora=RANK, or leave it out");
  }
  if (*options.adapters.dtype == options.dtype) return absl::OkStatus();
  if (*options.adapters.dtype == DType::kF32 && SizeOf(options.dtype) < SizeOf(DType::kF32)) {
    return absl::OkStatus();
  }
  return refuse(" with --dtype=", ToString(options.dtype),
                ": adapters have the model's type, or f32 beside a model in bf16 or f16");
}

// MiB, fractions too.
absl::Status ReadBucketSize(const std::string& text, Plan& plan) {
  constexpr double kMax = 1 << 20;
  MUSTER_ASSIGN_OR_RETURN(const double mebibytes, ParseNumber(text));
  const double bytes = mebibytes * (1 << 20);
  if (!(bytes >= 1 && mebibytes <= kMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a size in MiB above 0 and at most ", kMax));
  }
  plan.buckets.bytes_max = static_cast<int64_t>(bytes);
  plan.buckets.first_bytes = std::min(Plan().buckets.first_bytes, plan.buckets.bytes_max);
  return absl::OkStatus();
}

// What lies on which rank.
std::vector<Option> PlacementRows(PlanOptions& out) {
  return {
      {.name = "plan",
       .value_name = "P",
       .help = absl::StrCat("placement of training state: ", absl::StrJoin(PlanPresetNames(), ", "),
                            Default(out.plan.preset)),
       .read = Into(
           +[](const std::string& text) { return PlanPreset(text); }, out.plan),
       .field = "preset"},
      {.name = "stages",
       .value_name = "N",
       .help = "split the model into N pipeline stages; the ranks of each stage apply --plan among "
               "themselves; 0: one stage per rank" +
               Default(out.plan.stages),
       .read = Into(ParseInt64, out.plan.stages),
       .other_names = {"pipeline_stages"},
       .field = "stages"},
      {.name = "stage_schedule",
       .value_name = "S",
       .help = absl::StrCat("order in which the stages of a pipeline work: ",
                            absl::StrJoin(plan::ScheduleNames(), ", "),
                            ", or a file with a / or . in its path", Default(out.plan.schedule)),
       .read = Into(command_line::ParseName, out.plan.schedule),
       .field = "schedule"},
      {.name = "stages_per_rank",
       .value_name = "N",
       .help = "stages that each rank of a pipeline has in turn, so that the model is split into "
               "as many times --stages (interleaved, zbv and dualpipev: 2, others: 1)",
       .read = Into(ParseInt64, out.plan.stages_per_rank),
       .field = "stages_per_rank"},
      {.name = "unit_costs",
       .value_name = "UNITS:COST ...",
       .help = "what the model's units cost where it is split into stages, in any measure, such as "
               "'embedding:1 h.*:12 head:7'; the first match counts; or measured: muster-train "
               "times them as it starts (the operations of their products)",
       .read = [&out](const std::string& text) { return ReadUnitCost(text, out); },
       .field = "unit_costs",
       .is_list = true},
  };
}

std::vector<Option> SumRows(Plan& plan) {
  return {
      {.name = "mode",
       .value_name = "M",
       .help = "fast, or ordered for the same bits on any number of ranks" +
               Default(ToString(plan.mode)),
       .read = Into(ParseMode, plan.mode)},
      {.name = "bucket_mb",
       .value_name = "X",
       .help = "largest gradient bucket, in MiB" + Default(plan.buckets.bytes_max >> 20),
       .read = [&plan](const std::string& text) { return ReadBucketSize(text, plan); },
       .other_names = {"bucket_cap_mb"},
       .field = "bucket_bytes_max"},
      {.name = "overlap",
       .value_name = "B",
       .help = "reduce gradients during the backward pass, yes or no (yes)",
       .read = Into(ParseBool, plan.overlap),
       .other_names = {"overlap_comm"},
       .field = "overlap"},
  };
}

std::vector<Option> RecomputeRows(Recompute& recompute) {
  return {
      {.name = "recompute",
       .value_name = "R",
       .help = "activations to recompute in the backward pass: none, selective (GELU) or full "
               "(whole layers)" +
               Default(ToString(recompute.kind)),
       .read = Into(ParseRecompute, recompute.kind),
       .other_names = {"activation_checkpointing"},
       .field = "recompute.kind"},
      {.name = "gradient_checkpointing",
       .help = "shorthand for --recompute=full",
       .read = [&recompute](const std::string& text) -> absl::Status {
         MUSTER_ASSIGN_OR_RETURN(const bool on, ParseBool(text));
         if (on) recompute.kind = Recompute::Kind::kFull;
         return absl::OkStatus();
       }},
      {.name = "recompute_layers",
       .value_name = "N",
       .help = "layers per kept input with --recompute=full" + Default(recompute.layers),
       .read = Into(ParseInt64, recompute.layers),
       .field = "recompute.layers"},
  };
}

std::vector<Option> TypeAndDeviceRows(PlanOptions& out) {
  return {
      {.name = "dtype",
       .value_name = "T",
       .help = "type of parameters and activations: f32, bf16, f16 or f64; bf16 and f16 keep "
               "master parameters, gradients and moments in f32" +
               Default(ToString(out.dtype)),
       .read = Into(ParseDType, out.dtype)},
      {.name = "reduce_dtype",
       .value_name = "T",
       .help = "type of gradients on the wire, such as f32 or bf16 (as they are kept)",
       .read = [&out](const std::string& text) -> absl::Status {
         MUSTER_ASSIGN_OR_RETURN(out.plan.dtypes.reduced, ParseDType(text));
         return absl::OkStatus();
       },
       .other_names = {"communication_data_type"},
       .field = "reduce_dtype"},
      {.name = "device",
       .value_name = "D",
       .help = absl::StrCat("cpu, or cuda for one GPU per worker (", out.device, ")"),
       .read = Into(ParseDevice, out.device)},
      {.name = "cuda_attention",
       .value_name = "A",
       .help = "attention kernels in bf16 and f16 on a GPU: own, cudnn, or auto for cuDNN where it "
               "is installed and has the layer" +
               Default(ToString(out.cuda_attention)),
       .read = Into(ParseAttention, out.cuda_attention)},
  };
}

absl::StatusOr<Residency> ParseOffload(const std::string& text) {
  return ParseChoice<Residency>(
      text, {{"none", Residency::kDevice}, {"cpu", Residency::kCpu}, {"nvme", Residency::kNvme}});
}

std::vector<Option> OffloadRows(OffloadOptions& offload) {
  return {
      {.name = "offload_optimizer",
       .value_name = "D",
       .help = "offload optimizer state: none, cpu or nvme; this version only accepts cpu together "
               "with --device=cpu, where it changes nothing (none)",
       .read = Into(ParseOffload, offload.optimizer)},
      {.name = "offload_parameters",
       .value_name = "D",
       .help = "offload parameters: the same choices (none)",
       .read = Into(ParseOffload, offload.parameters),
       .other_names = {"offload_param"}},
  };
}

// true, false, or over how many ranks it stays sharded.
absl::Status ReadReshard(const std::string& text, GatherPlan& gathering) {
  gathering.secondary_ranks = 0;
  gathering.reshard_after_forward = text != "false";
  if (text == "true" || text == "false") return absl::OkStatus();
  const absl::StatusOr<int64_t> ranks = ParseInt64(text);
  if (!ranks.ok() || *ranks < 1) {
    return absl::InvalidArgumentError("expected true, false or a number of ranks");
  }
  gathering.secondary_ranks = *ranks;
  return absl::OkStatus();
}

absl::StatusOr<BackwardPrefetch> ParsePrefetch(const std::string& text) {
  std::string lower = absl::AsciiStrToLower(text);
  if (absl::StartsWith(lower, "backward_")) lower = lower.substr(9);
  return ParseNamed<BackwardPrefetch>(
      lower, {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone});
}

absl::StatusOr<GradientReduction> ParseReduction(const std::string& text) {
  return ParseNamed<GradientReduction>(
      text,
      {GradientReduction::kChosen, GradientReduction::kEachMicroBatch, GradientReduction::kOnce});
}

absl::Status ReadMemory(const std::string& text, int64_t& bytes) {
  MUSTER_ASSIGN_OR_RETURN(const double gibibytes, ParseNumber(text));
  if (!(gibibytes > 0 && gibibytes <= 1 << 18)) {
    return absl::InvalidArgumentError("expected a size in GiB above 0");
  }
  bytes = static_cast<int64_t>(gibibytes * (1 << 30));
  return absl::OkStatus();
}

// Options of plans that shard gradients or parameters. The second names are DeepSpeed's keys.
std::vector<Option> ShardRows(PlanOptions& out) {
  Plan& plan = out.plan;
  return {
      {.name = "shard_ranks",
       .value_name = "N",
       .help = "neighbouring ranks that share one copy of each state (all; hybrid: a node's)",
       .read = Into(ParseInt64, plan.shard_ranks),
       .other_names = {"mics_shard_size"},
       .field = "shard_ranks"},
      {.name = "mesh",
       .value_name = "D=N,...",
       .help = "sizes of dimensions by name: pp (stages of a pipeline), dp (replicas), shard "
               "(ranks that share one copy) and tp (neighbours that compute each layer together), "
               "as in pp=2,tp=4; ranks that are left over are dp",
       .read = [&out](const std::string& text) { return ReadMesh(text, out); },
       .field = "shard_ranks"},
      {.name = "reshard_after_forward",
       .value_name = "R",
       .help = "true: free gathered parameters after the forward pass; false: keep them; N: keep "
               "them sharded over N ranks (set by the plan)",
       .read = [&plan](const std::string& text) { return ReadReshard(text, plan.gathering); },
       .field = "gathering.secondary_ranks"},
  };
}

std::vector<Option> GatherRows(GatherPlan& gathering) {
  const auto elements = [](const char* name, const char* help, const char* other, int64_t& field,
                           const char* field_name) {
    return Option{.name = name,
                  .value_name = "N",
                  .help = help,
                  .read = Into(ParseInt64, field),
                  .other_names = {other},
                  .field = field_name};
  };
  return {
      {.name = "backward_prefetch",
       .value_name = "P",
       .help = "when the backward pass gathers the next unit: pre, post or none (pre)",
       .read = Into(ParsePrefetch, gathering.backward_prefetch),
       .field = "gathering.backward_prefetch"},
      {.name = "prefetch_units",
       .value_name = "N",
       .help = "most units gathered ahead of use (set by the plan)",
       .read = Into(ParseInt64, gathering.prefetch_units),
       .field = "gathering.prefetch_units"},
      elements("prefetch_elements", "most elements gathered ahead of use (as the plan has it)",
               "stage3_prefetch_bucket_size", gathering.prefetch_elements,
               "gathering.prefetch_elements"),
      elements("max_live_parameters", "most elements gathered at once (as the plan has it)",
               "stage3_max_live_parameters", gathering.max_live_elements,
               "gathering.max_live_elements"),
      elements(
          "max_reuse_distance",
          "keep a gathered unit that is used again within this many elements (as the plan has it)",
          "stage3_max_reuse_distance", gathering.max_reuse_distance,
          "gathering.max_reuse_distance"),
      elements("persistence_threshold",
               "never shard units of at most this many elements (as the plan has it)",
               "stage3_param_persistence_threshold", gathering.persistence_threshold,
               "gathering.persistence_threshold"),
      elements("model_persistence_threshold", "most elements never sharded, in all (no limit)",
               "stage3_model_persistence_threshold", gathering.persistence_total,
               "gathering.persistence_total"),
  };
}

std::vector<Option> MemoryRows(Plan& plan) {
  return {
      {.name = "gradient_reduction",
       .value_name = "R",
       .help = "when sharded gradients are reduced: each-micro-batch, once, or chosen by cost and "
               "memory (chosen)",
       .read = Into(ParseReduction, plan.gradient_reduction)},
      {.name = "memory_limit",
       .value_name = "X",
       .help = "memory per rank in GiB; refuse a plan that needs more (muster-train: what the "
               "machine, its control group and the GPU have)",
       .read = [&plan](const std::string& text) { return ReadMemory(text, plan.memory_bytes_max); },
       .field = "memory_bytes_max",
       .may_differ = true},  // ranks plan by the least
  };
}

std::vector<Option> ModelRows(DecoderConfig& model) {
  return {
      {.name = "model",
       .value_name = "NAME",
       .help = absl::StrCat(
           "sizes and parts of a known model: ", absl::StrJoin(KnownModelNames(), ", "),
           "; or the directory of one as transformers saves it, of which "
           "muster-train takes the weights, too (context: at most ",
           kContextOfFiles, ")"),
       .read =
           [&model](const std::string& text) {
             absl::StatusOr<DecoderConfig> known = FindModel(text);
             if (known.ok()) model = *std::move(known);
             return known.status();
           }},
      {.name = "num_layers",
       .value_name = "N",
       .help = "transformer blocks" + Default(model.layers),
       .read = Into(ParseInt64, model.layers),
       .other_names = {"layers"},
       .field = "layers"},
      {.name = "num_heads",
       .value_name = "N",
       .help = "attention heads per block" + Default(model.heads),
       .read = Into(ParseInt64, model.heads),
       .other_names = {"heads", "num_attention_heads"},
       .field = "heads"},
      {.name = "kv_heads",
       .value_name = "N",
       .help = "heads of keys and values, which the others share (as many as heads)",
       .read = Into(ParseInt64, model.kv_heads),
       .other_names = {"num_key_value_heads"},
       .field = "kv_heads"},
      {.name = "head_size",
       .value_name = "N",
       .help = "numbers of a head (hidden size / heads)",
       .read = Into(ParseInt64, model.head_size),
       .other_names = {"head_dim"},
       .field = "head_size"},
      {.name = "hidden_size",
       .value_name = "N",
       .help = "width of the residual stream" + Default(model.hidden_size),
       .read = Into(ParseInt64, model.hidden_size),
       .other_names = {"width"},
       .field = "hidden_size"},
      {.name = "mlp_size",
       .value_name = "N",
       .help = "width inside the MLPs (4 * hidden size)",
       .read = Into(ParseInt64, model.mlp_size),
       .other_names = {"intermediate_size"},
       .field = "mlp_size"},
      {.name = "sequence_length",
       .value_name = "N",
       .help = "tokens per sequence, the longest context" + Default(model.context),
       .read = Into(ParseInt64, model.context),
       .other_names = {"context", "seq_length"},
       .field = "context"},
  };
}

std::vector<Option> StepRows(PlanOptions& out) {
  return {
      {.name = "batch_size",
       .value_name = "N",
       .help = "sequences per rank and micro-batch" + Default(out.batch_size),
       .read = IntoBetween(1, kMostSequences, out.asked.micro),
       .other_names = {"micro_batch_size", "per_device_train_batch_size",
                       "train_micro_batch_size_per_gpu"},
       .field = "batch_size"},
      {.name = "gradient_accumulation_steps",
       .value_name = "N",
       .help = "micro-batches per rank and step" + Default(out.plan.accumulation),
       .read = IntoBetween(1, kMostMicroBatches, out.asked.accumulation),
       .other_names = {"accumulation"},
       .field = "accumulation"},
      {.name = "train_batch_size",
       .value_name = "N",
       .help = "sequences per step over all ranks and micro-batches; determines whichever of the "
               "two options above is missing",
       .read = IntoBetween(1, int64_t{1} << 40, out.asked.train),
       .other_names = {"global_batch_size"}},
      {.name = "steps",
       .value_name = "N",
       .help = "number of optimizer steps" + Default(out.steps),
       .read = IntoBetween(0, int64_t{1} << 48, out.steps),
       .other_names = {"max_steps"},
       .field = "learning_rate.total_steps"},
      {.name = "seed",
       .value_name = "N",
       .help = "seed for initialisation and data order" + Default(out.plan.seed),
       .read = Into(ParseUint64, out.plan.seed)},
  };
}

std::vector<Option> LearningRateRows(LearningRateSchedule& rate) {
  return {
      {.name = "lr",
       .value_name = "X",
       .help = "peak learning rate" + Default(rate.peak),
       .read = Into(ParseNumber, rate.peak),
       .other_names = {"learning_rate"},
       .field = "learning_rate.peak"},
      {.name = "min_lr",
       .value_name = "X",
       .help = "final learning rate of a decaying schedule; also the initial rate of DeepSpeed's" +
               Default(rate.floor),
       .read = Into(ParseNumber, rate.floor),
       .field = "learning_rate.floor"},
      {.name = "warmup_steps",
       .value_name = "N",
       .help = "steps over which the learning rate rises from 0" + Default(rate.warmup_steps),
       .read = Into(ParseInt64, rate.warmup_steps),
       .field = "learning_rate.warmup_steps"},
      {.name = "schedule",
       .value_name = "S",
       .help = "learning-rate schedule: constant, linear, cosine, or DeepSpeed's WarmupLR (warmup) "
               "and WarmupDecayLR (warmup_decay)" +
               Default(ToString(rate.kind)),
       .read = Into(ParseRateSchedule, rate.kind),
       .other_names = {"lr_schedule"},
       .field = "learning_rate.kind"},
      {.name = "schedule_steps",
       .value_name = "N",
       .help = "steps until a decaying schedule reaches its final rate (as --steps)",
       .read = IntoBetween(1, int64_t{1} << 48, rate.total_steps),
       .field = "learning_rate.total_steps"},
      {.name = "warmup_type",
       .value_name = "S",
       .help = "warmup of DeepSpeed's schedules: log or linear" + Default(ToString(rate.rise)),
       .read = Into(ParseRise, rate.rise),
       .field = "learning_rate.rise"},
  };
}

std::vector<Option> OptimizerRows(UpdateRule& update) {
  return {
      {.name = "optimizer",
       .value_name = "O",
       .help = "adamw, adam or sgd" + Default(ToString(update.kind)),
       .read = Into(ParseOptimizer, update.kind),
       .field = "update.kind"},
      {.name = "weight_decay",
       .value_name = "X",
       .help = "decay of weight matrices and embedding tables" + Default(update.weight_decay),
       .read = Into(ParseNumber, update.weight_decay),
       .field = "update.weight_decay"},
      {.name = "beta1",
       .value_name = "X",
       .help = "decay rate of the first moment" + Default(update.beta1),
       .read = Into(ParseNumber, update.beta1),
       .other_names = {"adam_beta1"},
       .field = "update.beta1"},
      {.name = "beta2",
       .value_name = "X",
       .help = absl::StrCat("decay rate of the second moment (", update.beta2,
                            " as in llm.c; 0.999 with a configuration file that sets no betas)"),
       .read = Into(ParseNumber, update.beta2),
       .other_names = {"adam_beta2"},
       .field = "update.beta2"},
      {.name = "epsilon",
       .value_name = "X",
       .help = "added to the root of the second moment" + Default(update.epsilon),
       .read = Into(ParseNumber, update.epsilon),
       .other_names = {"eps", "adam_epsilon"},
       .field = "update.epsilon"},
      {.name = "momentum",
       .value_name = "X",
       .help = "momentum of sgd" + Default(update.momentum),
       .read = Into(ParseNumber, update.momentum),
       .field = "update.momentum"},
      {.name = "nesterov",
       .help = "use Nesterov momentum with sgd",
       .read = Into(ParseBool, update.nesterov),
       .field = "update.nesterov"},
  };
}

std::vector<Option> RoundingAndClippingRows(Plan& plan) {
  return {
      {.name = "stochastic_rounding",
       .help = "round bf16 parameters stochastically (unbiased)",
       .read = Into(ParseBool, plan.update.stochastic_rounding),
       .field = "update.stochastic_rounding"},
      {.name = "max_gradient_norm",
       .value_name = "X",
       .help = "clip gradients to this norm; 0: no clipping" + Default(plan.max_gradient_norm),
       .read = Into(ParseNumber, plan.max_gradient_norm),
       .other_names = {"grad_clip", "max_grad_norm"},
       .field = "max_gradient_norm"},
  };
}

std::vector<Option> GroupRows(PlanOptions& out) {
  Plan& plan = out.plan;
  return {
      {.name = "freeze",
       .value_name = "PATTERN ...",
       .help = "freeze parameters whose names match; * matches any text: 'wpe.*'",
       .read = AddTo(ParseFrozen, plan.groups),
       .is_list = true},
      {.name = "group",
       .value_name = "PATTERN:SETTING,... ...",
       .help = "settings for parameters whose names match, such as "
               "'h.0.*:lr_scale=0.1,weight_decay=0': frozen, lr_scale, weight_decay, beta1, beta2; "
               "the first match counts, after --freeze",
       .read = AddTo(ParseGroup, plan.groups),
       .is_list = true},
      {.name = "lora",
       .value_name = "RANK[:PATTERN]",
       .help = absl::StrCat(
           "put an adapter of this rank beside each matrix of a block whose name matches, and "
           "train the adapters alone: the model beneath is frozen (RANK:",
           DecoderAdapters().beside, ", every block's attention)"),
       .read = Into(ParseAdapters, out.adapters)},
      {.name = "lora_dtype",
       .value_name = "T",
       .help = "type of adapters, such as f32 beside a frozen model in bf16 or f16 (as --dtype)",
       .read = [&out](const std::string& text) -> absl::Status {
         MUSTER_ASSIGN_OR_RETURN(out.adapters.dtype, ParseDType(text));
         return absl::OkStatus();
       }},
  };
}

std::vector<Option> LossScaleRows(LossScaling& scaling) {
  return {
      {.name = "loss_scale",
       .value_name = "S",
       .help = "none, dynamic as in deepspeed or torch, or a fixed number" +
               Default(ToString(scaling.kind)),
       .read = Into(ParseLossScale, scaling),
       .field = "loss_scaling.kind"},
      {.name = "initial_loss_scale",
       .value_name = "X",
       .help = "loss scale of the first step" + Default(scaling.initial),
       .read = Into(ParseNumber, scaling.initial),
       .field = "loss_scaling.initial"},
      {.name = "loss_scale_window",
       .value_name = "N",
       .help = "steps without overflow before the scale grows (1000 for deepspeed, 2000 for torch)",
       .read = Into(ParseInt64, scaling.window),
       .other_names = {"growth_interval"},
       .field = "loss_scaling.window"},
      {.name = "hysteresis",
       .value_name = "N",
       .help = "deepspeed: overflows before the scale is halved" + Default(scaling.hysteresis),
       .read = Into(ParseInt64, scaling.hysteresis),
       .field = "loss_scaling.hysteresis"},
      {.name = "consecutive_hysteresis",
       .help = "deepspeed: any step without overflow resets the hysteresis",
       .read = Into(ParseBool, scaling.consecutive_hysteresis),
       .field = "loss_scaling.consecutive_hysteresis"},
      {.name = "min_loss_scale",
       .value_name = "X",
       .help = "deepspeed: an overflow at this scale ends the training" + Default(scaling.minimum),
       .read = Into(ParseNumber, scaling.minimum),
       .field = "loss_scaling.minimum"},
      {.name = "growth_factor",
       .value_name = "X",
       .help = "torch: factor when the scale grows" + Default(scaling.growth),
       .read = Into(ParseNumber, scaling.growth),
       .field = "loss_scaling.growth"},
      {.name = "backoff_factor",
       .value_name = "X",
       .help = "torch: factor after an overflow" + Default(scaling.backoff),
       .read = Into(ParseNumber, scaling.backoff),
       .field = "loss_scaling.backoff"},
  };
}

}  // namespace

std::vector<Option> PlanFlags(PlanOptions& options) {
  constexpr char kPlan[] = "Plan (in brackets: the defaults)";
  constexpr char kSharding[] = "Sharding";
  constexpr char kUpdates[] = "Updates";
  const std::pair<const char*, std::vector<Option>> groups[] = {
      {kPlan, PlacementRows(options)},
      {kPlan, SumRows(options.plan)},
      {kPlan, RecomputeRows(options.plan.recompute)},
      {kPlan, TypeAndDeviceRows(options)},
      {kSharding, ShardRows(options)},
      {kSharding, GatherRows(options.plan.gathering)},
      {kSharding, MemoryRows(options.plan)},
      {"Where states are kept", OffloadRows(options.offload)},
      {"Model (a decoder)", ModelRows(options.model)},
      {"Steps", StepRows(options)},
      {kUpdates, LearningRateRows(options.plan.learning_rate)},
      {kUpdates, OptimizerRows(options.plan.update)},
      {kUpdates, RoundingAndClippingRows(options.plan)},
      {"Groups of parameters", GroupRows(options)},
      {"Loss scale", LossScaleRows(options.plan.loss_scaling)},
      {"Configuration files", ConfigFileRows()},
  };
  std::vector<Option> all;
  for (const auto& [group, rows] : groups) {
    for (Option row : rows) {
      row.group = group;
      all.push_back(std::move(row));
    }
  }
  return all;
}

absl::Status FinishPlanOptions(PlanOptions& options) {
  if (options.asked.micro != 0) options.batch_size = options.asked.micro;
  if (options.asked.accumulation != 0) options.plan.accumulation = options.asked.accumulation;
  LearningRateSchedule& schedule = options.plan.learning_rate;
  if (!schedule.falls()) {
    schedule.total_steps = 0;
  } else if (schedule.total_steps == 0) {
    schedule.total_steps = options.steps;
  }
  if (schedule.kind == LearningRateSchedule::Kind::kConstant && schedule.floor != 0) {
    return FieldError(
        "--min_lr",
        absl::StrCat("=", ExactText(schedule.floor),
                     ": a constant learning rate does not fall; add --schedule=linear or cosine"));
  }
  MUSTER_RETURN_IF_ERROR(CheckDevice(options));
  if (options.measures_unit_costs && !options.plan.unit_costs.empty()) {
    return FieldError("--unit_costs", absl::StrCat("=", ToString(options.plan.unit_costs),
                                                   " measured: say one of the two"));
  }
  if (options.measures_unit_costs && options.plan.stages == 1) {
    return FieldError("--unit_costs",
                      "=measured: nothing is split into stages; add --stages=N, or leave it out");
  }
  MUSTER_RETURN_IF_ERROR(CheckAdaptersType(options));
  absl::Status status = options.plan.Validate();
  if (status.ok()) status = CheckRounding(options.plan, options.adapters_dtype());
  if (!status.ok()) return WithoutBeginning("plan: ", status);
  return options.model.Validate();
}

}  // namespace muster::plan

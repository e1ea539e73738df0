#include "worker_runtime/options/plan_flags.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::plan {
namespace {

using command_line::Into;
using command_line::IntoBetween;
using command_line::Option;
using command_line::ParseChoice;
using command_line::ParseInt64;
using command_line::ParseNumber;
using command_line::ParseUint64;

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

absl::StatusOr<LearningRateSchedule::Kind> ParseSchedule(const std::string& text) {
  using Kind = LearningRateSchedule::Kind;
  return ParseNamed<Kind>(text, {Kind::kConstant, Kind::kLinear, Kind::kCosine});
}

// "f32", and what other programs call it.
absl::StatusOr<DType> ParseDType(const std::string& text) {
  for (const char* later : {"bf16", "bfloat16", "f16", "fp16", "float16"}) {
    if (text == later) {
      return absl::UnimplementedError(
          absl::StrCat("this version cannot train in ", text, " yet; expected f32 or f64"));
    }
  }
  for (const auto& [name, dtype] : {std::pair{"fp32", DType::kF32},
                                    {"float32", DType::kF32},
                                    {"fp64", DType::kF64},
                                    {"float64", DType::kF64}}) {
    if (text == name) return dtype;
  }
  return ParseChoice<DType>(text, {{"f32", DType::kF32}, {"f64", DType::kF64}});
}

absl::Status CheckDevice(const std::string& text) {
  if (text == "cpu") return absl::OkStatus();
  if (text == "cuda" || text == "gpu") {
    return absl::UnimplementedError("this version trains on CPUs only; expected cpu");
  }
  return absl::InvalidArgumentError("expected cpu");
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
  plan.bucket_bytes_max = static_cast<int64_t>(bytes);
  plan.first_bucket_bytes = std::min(Plan().first_bucket_bytes, plan.bucket_bytes_max);
  return absl::OkStatus();
}

std::vector<Option> PlanRows(PlanOptions& out) {
  return {
      {.name = "plan",
       .value_name = "P",
       .help = absl::StrCat("how states are placed: ", absl::StrJoin(PlanPresetNames(), ", "),
                            Default(out.plan.preset)),
       .read = Into(
           +[](const std::string& text) { return PlanPreset(text); }, out.plan),
       .field = "preset"},
      {.name = "mode",
       .value_name = "M",
       .help = "fast, or ordered: the same bits on any number of ranks" +
               Default(ToString(out.plan.mode)),
       .read = Into(ParseMode, out.plan.mode)},
      {.name = "bucket_mb",
       .value_name = "X",
       .help = "largest bucket of gradients, in MiB" + Default(out.plan.bucket_bytes_max >> 20),
       .read = [&out](const std::string& text) { return ReadBucketSize(text, out.plan); },
       .other_names = {"bucket_cap_mb"},
       .field = "bucket_bytes_max"},
      {.name = "dtype",
       .value_name = "T",
       .help = "type of parameters and arithmetic: f32 or f64" + Default(ToString(out.dtype)),
       .read = Into(ParseDType, out.dtype)},
      {.name = "device", .value_name = "D", .help = "cpu (cpu)", .read = CheckDevice},
  };
}

std::vector<Option> ModelRows(GptConfig& model) {
  return {
      {.name = "num_layers",
       .value_name = "N",
       .help = "transformer blocks" + Default(model.layers),
       .read = Into(ParseInt64, model.layers),
       .other_names = {"layers"},
       .field = "layers"},
      {.name = "num_heads",
       .value_name = "N",
       .help = "attention heads of a block" + Default(model.heads),
       .read = Into(ParseInt64, model.heads),
       .other_names = {"heads", "num_attention_heads"},
       .field = "heads"},
      {.name = "hidden_size",
       .value_name = "N",
       .help = "width of the residual stream" + Default(model.hidden_size),
       .read = Into(ParseInt64, model.hidden_size),
       .other_names = {"width"},
       .field = "hidden_size"},
      {.name = "sequence_length",
       .value_name = "N",
       .help = "tokens of a sequence, the longest context" + Default(model.context),
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
       .read = IntoBetween(1, int64_t{1} << 20, out.batch_size),
       .other_names = {"micro_batch_size"}},
      {.name = "gradient_accumulation_steps",
       .value_name = "N",
       .help = "micro-batches per rank and step" + Default(out.plan.accumulation),
       .read = Into(ParseInt64, out.plan.accumulation),
       .other_names = {"accumulation"},
       .field = "accumulation"},
      {.name = "steps",
       .value_name = "N",
       .help = "updates in all" + Default(out.steps),
       .read = IntoBetween(0, int64_t{1} << 48, out.steps),
       .field = "learning_rate.total_steps"},
      {.name = "seed",
       .value_name = "N",
       .help = "of initial values and of the order of the data" + Default(out.plan.seed),
       .read = Into(ParseUint64, out.plan.seed)},
  };
}

std::vector<Option> UpdateRows(Plan& plan) {
  LearningRateSchedule& rate = plan.learning_rate;
  return {
      {.name = "lr",
       .value_name = "X",
       .help = "peak learning rate" + Default(rate.peak),
       .read = Into(ParseNumber, rate.peak),
       .other_names = {"learning_rate"},
       .field = "learning_rate.peak"},
      {.name = "min_lr",
       .value_name = "X",
       .help = "final learning rate of a linear or cosine schedule" + Default(rate.floor),
       .read = Into(ParseNumber, rate.floor),
       .field = "learning_rate.floor"},
      {.name = "warmup_steps",
       .value_name = "N",
       .help = "updates in which the learning rate rises from 0" + Default(rate.warmup_steps),
       .read = Into(ParseInt64, rate.warmup_steps),
       .field = "learning_rate.warmup_steps"},
      {.name = "schedule",
       .value_name = "S",
       .help = "of the learning rate: constant, linear or cosine" + Default(ToString(rate.kind)),
       .read = Into(ParseSchedule, rate.kind),
       .other_names = {"lr_schedule"},
       .field = "learning_rate.kind"},
      {.name = "weight_decay",
       .value_name = "X",
       .help = "of weight matrices and embedding tables" + Default(plan.adamw.weight_decay),
       .read = Into(ParseNumber, plan.adamw.weight_decay),
       .field = "adamw.weight_decay"},
      {.name = "beta1",
       .value_name = "X",
       .help = "decay rate of the first moment" + Default(plan.adamw.beta1),
       .read = Into(ParseNumber, plan.adamw.beta1),
       .field = "adamw.beta1"},
      {.name = "beta2",
       .value_name = "X",
       .help = "decay rate of the second moment" + Default(plan.adamw.beta2),
       .read = Into(ParseNumber, plan.adamw.beta2),
       .field = "adamw.beta2"},
      {.name = "max_gradient_norm",
       .value_name = "X",
       .help = "gradients with a larger norm are scaled down to it; 0: no clipping" +
               Default(plan.max_gradient_norm),
       .read = Into(ParseNumber, plan.max_gradient_norm),
       .other_names = {"grad_clip", "max_grad_norm"},
       .field = "max_gradient_norm"},
  };
}

// Known, so that they are refused by name.
std::vector<Option> LaterRows() {
  const auto row = [](const char* name, const char* what) {
    return Option{.name = name, .value_name = "FILE", .help = what, .read = [](const std::string&) {
                    return absl::UnimplementedError(
                        "not in this version; give --plan and the options beside it instead");
                  }};
  };
  return {row("deepspeed", "a configuration of DeepSpeed"),
          row("accelerate", "a configuration of Accelerate"),
          row("ilab", "a configuration of InstructLab"),
          row("mesh", "several kinds of parallelism at once")};
}

}  // namespace

std::vector<Option> PlanFlags(PlanOptions& options) {
  const std::pair<const char*, std::vector<Option>> groups[] = {
      {"Plan (in brackets: what holds without the option)", PlanRows(options)},
      {"Model (a GPT)", ModelRows(options.model)},
      {"Steps", StepRows(options)},
      {"Updates (AdamW)", UpdateRows(options.plan)},
      {"In a later version", LaterRows()},
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
  LearningRateSchedule& schedule = options.plan.learning_rate;
  if (schedule.kind != LearningRateSchedule::Kind::kConstant) {
    schedule.total_steps = options.steps;
  } else if (schedule.floor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_lr=", ExactText(schedule.floor),
                     ": a constant learning rate does not fall; add --schedule=linear or cosine"));
  }
  if (const absl::Status status = options.plan.Validate(); !status.ok()) {
    return absl::Status(status.code(), absl::StripPrefix(status.message(), "plan: "));
  }
  return options.model.Validate();
}

}  // namespace muster::plan

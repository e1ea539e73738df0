#include "worker_runtime/plan/option_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/option_values.h"

namespace muster::plan {
namespace {

using Text = const std::string&;
using Out = PlanOptions&;

absl::Status NotYet(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what, " in this version; give --plan and the options beside it instead"));
}

absl::Status ReadPlan(Text text, Out out) {
  MUSTER_ASSIGN_OR_RETURN(const Plan preset, PlanPreset(text));
  out.plan = preset;
  return absl::OkStatus();
}

absl::Status CheckCount(int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected between ", low, " and ", high));
}

absl::Status ReadBatchSize(Text text, Out out) {
  MUSTER_RETURN_IF_ERROR(ReadInteger(text, out.batch_size));
  return CheckCount(out.batch_size, 1, int64_t{1} << 20);
}

absl::Status ReadSteps(Text text, Out out) {
  MUSTER_RETURN_IF_ERROR(ReadInteger(text, out.steps));
  return CheckCount(out.steps, 0, int64_t{1} << 48);
}

absl::Status ReadBucket(Text text, Out out) {
  MUSTER_RETURN_IF_ERROR(ReadMebibytes(text, out.plan.bucket_bytes_max));
  out.plan.first_bucket_bytes = std::min(Plan().first_bucket_bytes, out.plan.bucket_bytes_max);
  return absl::OkStatus();
}

std::string Default(const auto& value) { return absl::StrCat(" (", value, ")"); }

std::vector<OptionRow> ModelRows() {
  const GptConfig model;
  const char* const group = "Model (a GPT; in brackets what holds if nothing is said)";
  return {
      {"layers", "N", group, "blocks" + Default(model.layers), "layers",
       [](Text text, Out out) { return ReadInteger(text, out.model.layers); }},
      {"heads", "N", group, "attention heads of a block" + Default(model.heads), "heads",
       [](Text text, Out out) { return ReadInteger(text, out.model.heads); }},
      {"width", "N", group, "numbers per token" + Default(model.width), "width",
       [](Text text, Out out) { return ReadInteger(text, out.model.width); }},
      {"context", "N", group, "tokens of a sequence" + Default(model.context), "context",
       [](Text text, Out out) { return ReadInteger(text, out.model.context); }},
  };
}

std::vector<OptionRow> BatchRows() {
  const PlanOptions options;
  const char* const group = "Steps";
  return {
      {"batch_size", "N", group, "sequences per rank and micro-batch" + Default(options.batch_size),
       "", ReadBatchSize},
      {"accumulation", "N", group,
       "micro-batches per rank and step" + Default(options.plan.accumulation), "accumulation",
       [](Text text, Out out) { return ReadInteger(text, out.plan.accumulation); }},
      {"steps", "N", group, "updates in all" + Default(options.steps), "learning_rate.total_steps",
       ReadSteps},
      {"seed", "N", group,
       "of initial values and of the order of data" + Default(options.plan.seed), "seed",
       [](Text text, Out out) { return ReadSeed(text, out.plan.seed); }},
  };
}

std::vector<OptionRow> UpdateRows() {
  const Plan plan;
  const char* const group = "Updates (AdamW)";
  return {
      {"lr", "X", group, "learning rate, at its peak" + Default(plan.learning_rate.peak),
       "learning_rate.peak",
       [](Text text, Out out) { return ReadNumber(text, out.plan.learning_rate.peak); }},
      {"min_lr", "X", group, "where a falling one ends" + Default(plan.learning_rate.floor),
       "learning_rate.floor",
       [](Text text, Out out) { return ReadNumber(text, out.plan.learning_rate.floor); }},
      {"warmup_steps", "N", group,
       "updates in which it rises from 0" + Default(plan.learning_rate.warmup_steps),
       "learning_rate.warmup_steps",
       [](Text text, Out out) { return ReadInteger(text, out.plan.learning_rate.warmup_steps); }},
      {"schedule", "S", group,
       "constant, linear or cosine: how it falls" + Default(ToString(plan.learning_rate.kind)),
       "learning_rate.kind",
       [](Text text, Out out) { return ReadSchedule(text, out.plan.learning_rate.kind); }},
      {"weight_decay", "X", group, "of matrices and tables" + Default(plan.adamw.weight_decay),
       "adamw.weight_decay",
       [](Text text, Out out) { return ReadNumber(text, out.plan.adamw.weight_decay); }},
      {"beta1", "X", group, "of the first moment" + Default(plan.adamw.beta1), "adamw.beta1",
       [](Text text, Out out) { return ReadNumber(text, out.plan.adamw.beta1); }},
      {"beta2", "X", group, "of the second moment" + Default(plan.adamw.beta2), "adamw.beta2",
       [](Text text, Out out) { return ReadNumber(text, out.plan.adamw.beta2); }},
      {"grad_clip", "X", group,
       "longest gradient; 0: not clipped" + Default(plan.gradient_norm_max), "gradient_norm_max",
       [](Text text, Out out) { return ReadNumber(text, out.plan.gradient_norm_max); }},
  };
}

std::vector<OptionRow> PlanRows() {
  const PlanOptions options;
  const char* const group = "Plan";
  return {
      {"plan", "P", group,
       absl::StrCat("one of ", absl::StrJoin(PlanPresetNames(), ", "),
                    Default(options.plan.preset)),
       "preset", ReadPlan},
      {"mode", "M", group,
       "fast, or ordered: the same bits on any number of ranks" +
           Default(ToString(options.plan.mode)),
       "mode", [](Text text, Out out) { return ReadMode(text, out.plan.mode); }},
      {"bucket_mb", "X", group,
       "largest bucket of gradients, in MiB" + Default(options.plan.bucket_bytes_max >> 20),
       "bucket_bytes_max", ReadBucket},
      {"dtype", "T", group, "f32 or f64" + Default(ToString(options.dtype)), "",
       [](Text text, Out out) { return ReadDType(text, out.dtype); }},
      {"device", "D", group, "cpu (cpu)", "", [](Text text, Out) { return CheckDevice(text); }},
  };
}

// Known, so that they are refused by name.
std::vector<OptionRow> LaterRows() {
  const char* const group = "In a later version";
  return {
      {"deepspeed", "F", group, "a configuration of DeepSpeed", "",
       [](Text, Out) { return NotYet("a configuration of DeepSpeed is not read"); }},
      {"accelerate", "F", group, "a configuration of Accelerate", "",
       [](Text, Out) { return NotYet("a configuration of Accelerate is not read"); }},
      {"ilab", "F", group, "a configuration of InstructLab", "",
       [](Text, Out) { return NotYet("a configuration of InstructLab is not read"); }},
      {"mesh", "M", group, "several kinds of parallelism at once", "",
       [](Text, Out) { return NotYet("several kinds of parallelism are not combined"); }},
  };
}

}  // namespace

std::vector<OptionRow> OptionRows() {
  std::vector<OptionRow> all;
  for (const std::vector<OptionRow>& rows :
       {PlanRows(), ModelRows(), BatchRows(), UpdateRows(), LaterRows()}) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace muster::plan

#include "worker_runtime/plan/plan_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/arguments.h"
#include "worker_runtime/plan/option_values.h"

namespace muster::plan {
namespace {

using Text = const std::string&;
using Out = PlanOptions&;

struct Row {
  const char* name;
  const char* value_name;
  const char* group;
  std::string help;
  const char* field;  // what Validate calls it
  absl::Status (*read)(Text text, Out out);
};

absl::Status NotYet(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(
      what, " in this version; give --plan and the options beside it instead"));
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
  out.plan.first_bucket_bytes_max =
      std::min(Plan().first_bucket_bytes_max, out.plan.bucket_bytes_max);
  return absl::OkStatus();
}

std::string Default(const auto& value) { return absl::StrCat(" (", value, ")"); }

std::vector<Row> ModelRows() {
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

std::vector<Row> BatchRows() {
  const PlanOptions options;
  const char* const group = "Steps";
  return {
      {"batch_size", "N", group,
       "sequences per rank and micro-batch" + Default(options.batch_size), "", ReadBatchSize},
      {"accumulation", "N", group,
       "micro-batches per rank and step" + Default(options.plan.accumulation), "accumulation",
       [](Text text, Out out) { return ReadInteger(text, out.plan.accumulation); }},
      {"steps", "N", group, "updates in all" + Default(options.steps), "learning_rate.total_steps",
       ReadSteps},
      {"seed", "N", group, "of initial values and of the order of data" + Default(options.plan.seed),
       "seed", [](Text text, Out out) { return ReadSeed(text, out.plan.seed); }},
  };
}

std::vector<Row> UpdateRows() {
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

std::vector<Row> PlanRows() {
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
std::vector<Row> LaterRows() {
  const char* const group = "In a later version";
  return {
      {"deepspeed", "F", group, "a configuration of DeepSpeed", "",
       [](Text, Out) { return NotYet("a configuration of DeepSpeed is not read"); }},
      {"accelerate", "F", group, "a configuration of Accelerate", "",
       [](Text, Out) { return NotYet("a configuration of Accelerate is not read"); }},
      {"ilab", "F", group, "a configuration of InstructLab", "",
       [](Text, Out) { return NotYet("a configuration of InstructLab is not read"); }},
      {"mesh", "M", group, "several kinds of parallelism at once", "",
       [](Text, Out) { return NotYet("there is one kind of parallelism, over data,"); }},
  };
}

// --plan sets all of a plan, so it comes first whatever the order on the command line.
std::vector<Row> AllRows() {
  std::vector<Row> all;
  for (const std::vector<Row>& rows :
       {PlanRows(), ModelRows(), BatchRows(), UpdateRows(), LaterRows()}) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

// Validate speaks of fields, people of flags.
absl::Status NameFlag(const absl::Status& status, const std::vector<Row>& rows) {
  absl::string_view text = status.message();
  absl::ConsumePrefix(&text, "plan: ");
  for (const Row& row : rows) {
    const std::string subject = absl::StrCat(row.field, " must ");
    if (*row.field == 0 || !absl::StartsWith(text, subject)) continue;
    return absl::Status(status.code(),
                        absl::StrCat("--", row.name, text.substr(subject.size() - 6)));
  }
  return status;
}

}  // namespace

struct PlanOptionsParser::State {
  std::vector<Row> rows = AllRows();
  std::vector<const CLI::Option*> options;  // [rows], of the caller's application
};

PlanOptionsParser::PlanOptionsParser(CLI::App& app) : state_(std::make_unique<State>()) {
  for (const Row& row : state_->rows) {
    state_->options.push_back(app.add_option(Spellings(row.name), CLI::callback_t(), row.help)
                                  ->type_name(row.value_name)
                                  ->group(row.group)
                                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast));
  }
}

PlanOptionsParser::~PlanOptionsParser() = default;

absl::StatusOr<PlanOptions> PlanOptionsParser::Finish(const GptConfig& model) const {
  PlanOptions options;
  options.model = model;
  for (size_t i = 0; i < state_->rows.size(); ++i) {
    if (state_->options[i]->count() == 0) continue;
    const Row& row = state_->rows[i];
    const std::string text = state_->options[i]->results().back();
    MUSTER_RETURN_IF_ERROR(AtOption(row.name, text, row.read(text, options)));
  }
  LearningRateSchedule& schedule = options.plan.learning_rate;
  if (schedule.kind != LearningRateSchedule::Kind::kConstant) {
    schedule.total_steps = options.steps;
  } else if (schedule.floor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_lr=", schedule.floor,
                     ": a constant learning rate does not fall; add --schedule=linear or cosine"));
  }
  for (const absl::Status& status : {options.plan.Validate(), options.model.Validate()}) {
    if (!status.ok()) return NameFlag(status, state_->rows);
  }
  return options;
}

}  // namespace muster::plan

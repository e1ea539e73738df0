#include "worker_runtime/plan/plan_options.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/arguments.h"
#include "worker_runtime/plan/exact_text.h"
#include "worker_runtime/plan/option_rows.h"
#include "worker_runtime/plan/option_values.h"

namespace muster::plan {
namespace {

// Validate speaks of fields, people of flags.
absl::Status NameFlag(const absl::Status& status, const std::vector<OptionRow>& rows) {
  absl::string_view text = status.message();
  absl::ConsumePrefix(&text, "plan: ");
  for (const OptionRow& row : rows) {
    const std::string subject = absl::StrCat(row.field, " must ");
    if (*row.field == 0 || !absl::StartsWith(text, subject)) continue;
    return absl::Status(status.code(),
                        absl::StrCat("--", row.name, text.substr(subject.size() - 6)));
  }
  return status;
}

}  // namespace

struct PlanOptionsParser::State {
  std::vector<OptionRow> rows = OptionRows();
  std::vector<const CLI::Option*> options;  // [rows], of the caller's application
};

PlanOptionsParser::PlanOptionsParser(CLI::App& app) : state_(std::make_unique<State>()) {
  for (const OptionRow& row : state_->rows) {
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
    const OptionRow& row = state_->rows[i];
    const std::string text = state_->options[i]->results().back();
    MUSTER_RETURN_IF_ERROR(AtOption(row.name, text, row.read(text, options)));
  }
  LearningRateSchedule& schedule = options.plan.learning_rate;
  if (schedule.kind != LearningRateSchedule::Kind::kConstant) {
    schedule.total_steps = options.steps;
  } else if (schedule.floor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_lr=", ExactText(schedule.floor),
                     ": a constant learning rate does not fall; add --schedule=linear or cosine"));
  }
  for (const absl::Status& status : {options.plan.Validate(), options.model.Validate()}) {
    if (!status.ok()) return NameFlag(status, state_->rows);
  }
  return options;
}

}  // namespace muster::plan

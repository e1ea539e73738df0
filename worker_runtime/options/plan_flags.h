// The command line options that muster-train and `muster plan` share.
//
//   plan::PlanOptions options;
//   for (command_line::Option& row : plan::PlanFlags(options)) grammar.options.push_back(row);
//   ... command_line::Split, command_line::ReadValues ...
//   MUSTER_RETURN_IF_ERROR(
//       command_line::InWordsOf(grammar, line, plan::FinishPlanOptions(options)));
//
// What a value may be is said in one place, DecoderConfig::Validate and Plan::Validate.
//
// Threads: pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/command_line/command_line.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

// Rows that fill `options`, which outlives them. Defaults in the help are those of `options`.
//
// --plan is the first, because it sets all of a plan whatever the order on the command line; a row
// that sets all of a model goes in front of these.
std::vector<command_line::Option> PlanFlags(PlanOptions& options);

// Completes what was read, and checks it.
//
// Errors: a FieldError, for command_line::InWordsOf.
absl::Status FinishPlanOptions(PlanOptions& options);

}  // namespace muster::plan

// The table of options that plan_options.h adds to a command line.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::plan {

struct OptionRow {
  const char* name;        // with underscores
  const char* value_name;  // in the help
  const char* group;       // heading in the help
  std::string help;
  const char* field;  // what GptConfig::Validate and Plan::Validate call it; empty: they do not
  // Errors: as option_values.h.
  absl::Status (*read)(const std::string& text, PlanOptions& out);
};

// In the order in which they are to be read: --plan sets all of a plan, so it comes first whatever
// the order on the command line.
std::vector<OptionRow> OptionRows();

}  // namespace muster::plan

// `muster plan --pipeline_schedule`: schedules of a pipeline, proven, drawn and compared.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/command_line/command_line.h"
#include "worker_runtime/options/config_files.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/schedules/schedule_page.h"

namespace muster::launcher {

struct ScheduleOptions {
  std::string asked;  // all, a name or a file; empty: the page of the plan
  plan::ScheduleForm form = plan::ScheduleForm::kPage;
  plan::PassCosts costs;
};

std::vector<command_line::Option> ScheduleRows(ScheduleOptions& out);

// What is printed. `line` tells what was said of ranks and micro-batches, which a file has itself;
// where the stages are not said, each rank is one.
//
// Errors: kInvalidArgument: the ranks cannot be divided into stages, the schedule has no order for
// them, or does not end; what `files.read_file` says.
absl::StatusOr<std::string> ScheduleText(const ScheduleOptions& asked, plan::PlanOptions options,
                                         int64_t world_size, const command_line::CommandLine& line,
                                         const plan::ConfigView& files);

}  // namespace muster::launcher

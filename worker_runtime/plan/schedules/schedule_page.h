// What `muster plan --pipeline_schedule` prints: schedules side by side, or one of them.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/schedules/prove_schedule.h"
#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

// How one schedule is printed: with its figures and a picture, as a file to edit, as an image.
enum class ScheduleForm : uint8_t { kPage, kFile, kSvg };

struct ScheduleRequest {
  int ranks = 1;
  int64_t micro_batches = 1;
  std::optional<int> stages_per_rank;  // nothing: what each schedule usually has
  // The costs of all that a rank has over one micro-batch; its stages take alike parts of them.
  PassCosts costs;
};

// Adds a line of a page to it: a value behind its name.
void ValueLine(std::string& page, absl::string_view name, absl::string_view value);

// A line for each schedule that has a name: what it takes, or why it has no order for this.
absl::StatusOr<std::string> CompareSchedules(const ScheduleRequest& request);

// One of them. Errors: as MakeSchedule and ProveSchedule.
absl::StatusOr<std::string> ShowSchedule(absl::string_view name, const ScheduleRequest& request,
                                         ScheduleForm form);

// The text of a file, which has ranks and micro-batches of its own; those of `request` are 0 where
// nobody has said them.
//
// Errors: as ParseSchedule and ProveSchedule; the request says other ranks or micro-batches.
absl::StatusOr<std::string> ShowScheduleFile(absl::string_view text, const ScheduleRequest& request,
                                             ScheduleForm form);

}  // namespace muster::plan

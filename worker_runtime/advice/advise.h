// muster plan --advise: the quickest plan that fits, over presets, recomputation, accumulation,
// stages and types, by predicted step time.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/advice/step_time.h"
#include "worker_runtime/plan/plan_options.h"

namespace muster::advice {

struct AdviceInput {
  plan::PlanOptions options;  // model, sequences of a step and device; what varies is varied
  JobShape shape;
  int64_t memory_bytes_max = 0;  // of a rank
  RankRates narrow;              // in 16 bits; flops of 0: not offered
  RankRates wide;                // in f32
  std::string devices;           // for people, with their sources
};

// Lines of text: the quickest plan as options, what it takes, and the runners-up.
//
// Errors: kInvalidArgument: nothing that was tried fits (with what less memory costs in time, and
//         what to change); the sequences of a step cannot be divided over the ranks.
absl::StatusOr<std::string> Advise(const AdviceInput& input);

// Whether plans are tried that differ in this option of muster-train: what was given is the first.
bool VariesOption(absl::string_view option);

}  // namespace muster::advice

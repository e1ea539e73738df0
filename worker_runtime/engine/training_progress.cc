#include "worker_runtime/engine/training_progress.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::engine {
namespace {

constexpr char kSkippedSteps[] = "skipped_steps";

}  // namespace

checkpoint::TrainingState TrainingProgress::Save() const {
  checkpoint::TrainingState head = {.step = step, .counters = scaler.Save()};
  head.counters[kSkippedSteps] = absl::StrCat(skipped_steps);
  return head;
}

absl::Status TrainingProgress::CheckWhole() const {
  if (!is_torn) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the state is of no step: what failed after step ", step,
                   " had begun to change parameters and optimizer"));
}

absl::StatusOr<TrainingProgress> TrainingProgress::Read(const checkpoint::TrainingState& saved,
                                                        const std::string& name) const {
  TrainingProgress read = *this;
  read.step = saved.step;
  read.skipped_steps = 0;
  read.is_torn = false;
  absl::Status status = read.scaler.Load(saved.counters);
  const auto skipped = saved.counters.find(kSkippedSteps);
  if (status.ok() && skipped != saved.counters.end() &&
      !(absl::SimpleAtoi(skipped->second, &read.skipped_steps) && read.skipped_steps >= 0 &&
        read.skipped_steps <= saved.step)) {
    status = absl::InvalidArgumentError(absl::StrCat(
        kSkippedSteps, " is '", skipped->second, "', not a number of the ", saved.step, " steps"));
  }
  if (status.ok()) return read;
  return absl::Status(status.code(), absl::StrCat(name, " is damaged: ", status.message()));
}

}  // namespace muster::engine

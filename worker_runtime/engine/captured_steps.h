// A whole step as one piece of work of the device: captured from a step like those before it, then
// launched. What differs from step to step lies in the device's memory before it begins: ids,
// tokens, learning rate, loss scale.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "worker_runtime/engine/batch_feed.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/step_form.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/step_runner.h"

namespace muster::engine {

// Threads: thread-compatible.
class CapturedSteps {
 public:
  // All outlive this. `wanted`: see EngineOptions::captures_steps.
  CapturedSteps(Rig& rig, BatchFeed& feed, StepRunner& runner, const StepListeners& listeners,
                std::optional<bool> wanted = std::nullopt);

  // The last capture is of no use, as after a failure.
  void Forget();

  // Puts the step on the queue in the form that all ranks agree on. `from_reader`: on the batches
  // of the feed. Errors: StepRunner::Put's, the communicator's.
  absl::Status Put(PassForward forward, bool from_reader);

 private:
  absl::Status PutBatches(PassForward forward, StepForm form, const StepShape& before);
  // Whether steps have more than one form; the same on all ranks.
  bool HasForms() const;
  // The worst of all ranks' numbers.
  absl::StatusOr<int32_t> WorstOfRanks(int32_t own);
  // Whether all ranks did.
  absl::StatusOr<bool> Capture(PassForward forward);
  absl::Status CaptureOwn(PassForward forward);

  Rig& rig_;
  BatchFeed& feed_;
  StepRunner& runner_;
  const StepListeners& listeners_;

  StepForms forms_;
  std::unique_ptr<CapturedCalls> captured_;
};

}  // namespace muster::engine

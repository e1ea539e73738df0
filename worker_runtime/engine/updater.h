// The part of a step that leads from reduced gradients to updated parameters: norm, loss scale,
// clipping, the update, and what ends a step instead.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/engine.h"
#include "muster/rng.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/step_decision.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/kernels/rounding.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster::engine {

// How values are rounded that follow their masters by draws (kernels/rounding.h).
struct ValueRounding {
  PhiloxKey key;
  int64_t updates = 0;  // that the masters have taken
};

// Threads: thread-compatible.
class Updater {
 public:
  // Both outlive this.
  Updater(Rig& rig, TrainingProgress& progress);

  // Puts what the step that begins needs of the host beside its batches. Its learning rate.
  double PutNumbers();
  // Whether the loss has a scale.
  bool scales_loss() const { return progress_.scaler.is_on(); }
  // The gradient of the sum of a micro-batch's losses.
  double SeedOfBackward() const;
  // The same in the device's memory, [1] of f32.
  Tensor narrow_loss_scale() const { return decision_.narrow_loss_scale(); }

  // NORM: of the sum over all micro-batches, of the blocks whose squares this rank gives.
  void ComputeNorm(const plan::Norm& norm);
  // CLIP: what becomes of the step, in the device's memory.
  void Decide();
  // Waits until it is decided and, on a device, updated. Errors: the device's.
  absl::StatusOr<StepRecord> Read() const { return decision_.Read(); }
  // What the host makes of it. Errors: the communicator's; kFailedPrecondition: loss or norm is not
  // finite, on all ranks.
  absl::Status Judge(const StepRecord& record, StepResult& result);
  // UPDATE
  void Update(int bucket);

  // Masters were loaded, of so many updates: values follow them.
  void GoOnAfter(int64_t updates);
  // How values follow masters that have taken so many updates, if by draws.
  std::optional<ValueRounding> RoundingAfter(int64_t updates) const;

 private:
  PhiloxKey RoundingKey() const { return Rng(rig_.plan.seed, "rounding").key(); }
  // The learning rate of the step that begins, which is not counted yet.
  double ScheduledLearningRate() const;
  std::vector<kernels::UpdateSettings> Settings() const;
  absl::Status CheckLoss(LossSum total);
  absl::Status JudgeScale(bool overflow);
  absl::Status NormError(absl::string_view hint);
  // Parameters of the blocks that are updated alike.
  std::vector<kernels::UpdateRun> RunsOf(plan::BlockRange blocks) const;
  // Gives the parameters that this rank owns of a bucket the values of their masters, after so many
  // updates as the decision has counted.
  void RoundMasters(int bucket);
  // The draws of elements from number `first_element` of the model on.
  kernels::RoundingDraws DrawsFrom(int64_t first_element) const;

  Rig& rig_;
  TrainingProgress& progress_;
  // Parameters that are updated alike are a group.
  const std::vector<plan::ParameterUpdate> groups_;
  const std::vector<int> group_of_parameter_;  // of those that are not frozen
  StepDecision decision_;
};

}  // namespace muster::engine

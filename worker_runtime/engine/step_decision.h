// What becomes of a step, decided in the device's memory between its gradients and its update, and
// the small record of it that reaches the host.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/tensor.h"
#include "worker_runtime/kernels/update_decision.h"

namespace muster::engine {

struct StepRecord {
  double loss = 0;
  double num_tokens = 0;
  double norm = 0;
  bool skipped = false;  // loss or norm is not finite
};

// Threads: thread-compatible.
class StepDecision {
 public:
  // Decides for parameters that are updated in `num_groups` different ways. `queue` outlives this.
  StepDecision(Queue& queue, int num_groups);

  // So many updates were taken before.
  void Begin(int64_t updates);

  // What the next step needs of the host beside its batches, before its first kernel.
  void PutNumbers(double loss_scale, double learning_rate);
  // [1] of f32: the scale of the loss, for its gradient.
  Tensor narrow_loss_scale() const { return Part(kNarrowScale, DType::kF32, 1); }

  // [2] of f64: where the sum of the loss and its tokens are put before Decide.
  Tensor loss() const { return Part(kLoss, DType::kF64, 2); }
  // `settings` by group; `squares`: parts of the sum over the whole gradient.
  void Decide(absl::Span<const kernels::UpdateSettings> settings, const Tensor& squares);
  // The decisions for the kernels of the update, one group behind the other.
  Tensor OfGroups() const { return memory_.Slice(kFirst, {num_groups_ * kEach}); }

  // Waits until it is decided. Errors: the device's.
  absl::StatusOr<StepRecord> Read() const;

 private:
  Tensor OfGroup(int group) const { return memory_.Slice(kFirst + group * kEach, {kEach}); }

  // Places in memory_, in bytes. What the record has comes first.
  static constexpr int64_t kLoss = 0;
  static constexpr int64_t kLossScale = 16;
  static constexpr int64_t kLearningRate = 24;
  static constexpr int64_t kNarrowScale = 32;
  static constexpr int64_t kSquares = 40;
  static constexpr int64_t kFirst = 48;
  static constexpr int64_t kEach = sizeof(kernels::UpdateDecision);

  Tensor Part(int64_t place, DType dtype, int64_t count) const {
    return memory_.Slice(place, {count * static_cast<int64_t>(SizeOf(dtype))}).As(dtype, {count});
  }

  // Constant after construction.
  Queue& queue_;
  const int num_groups_;
  TensorPool pool_;
  const Tensor memory_;  // of bytes
};

}  // namespace muster::engine

#include "worker_runtime/engine/step_decision.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {

StepDecision::StepDecision(Queue& queue, int num_groups)
    : queue_(queue),
      num_groups_(num_groups),
      pool_(queue.device()),
      memory_(pool_.Allocate(DType::kU8, {kFirst + num_groups * kEach})) {
  Begin(0);
}

void StepDecision::Begin(int64_t updates) {
  const kernels::UpdateDecision before = {.updates = updates};
  for (int group = 0; group < num_groups_; ++group) {
    queue_.device().Upload(queue_, &before, OfGroup(group).raw_data(), sizeof(before));
  }
}

void StepDecision::PutNumbers(double loss_scale, double learning_rate) {
  std::array<std::byte, kSquares - kLossScale> bytes = {};
  const auto narrow = static_cast<float>(loss_scale);
  std::memcpy(bytes.data(), &loss_scale, sizeof(loss_scale));
  std::memcpy(bytes.data() + kLearningRate - kLossScale, &learning_rate, sizeof(learning_rate));
  std::memcpy(bytes.data() + kNarrowScale - kLossScale, &narrow, sizeof(narrow));
  queue_.device().Upload(queue_, bytes.data(),
                         memory_.Slice(kLossScale, {kSquares - kLossScale}).raw_data(),
                         bytes.size());
}

void StepDecision::Decide(absl::Span<const kernels::UpdateSettings> settings,
                          const Tensor& squares) {
  const Device& device = queue_.device();
  const Operations& operations = device.operations(DType::kF32);
  const Tensor scale = Part(kLossScale, DType::kF64, 1);
  const Tensor learning_rate = Part(kLearningRate, DType::kF64, 1);
  const Tensor sum = Part(kSquares, DType::kF64, 1);
  operations.tree_sum(queue_, squares, sum);
  for (int group = 0; group < num_groups_; ++group) {
    operations.decide_update(queue_, settings[group],
                             {.squares = sum,
                              .tokens = loss().Slice(1, {1}),
                              .loss_scale = scale,
                              .loss = loss().Slice(0, {1}),
                              .learning_rate = learning_rate},
                             OfGroup(group));
  }
}

absl::StatusOr<StepRecord> StepDecision::Read() const {
  std::array<std::byte, kFirst + kEach> bytes;
  MUSTER_RETURN_IF_ERROR(
      queue_.device().Download(queue_, memory_.raw_data(), bytes.data(), bytes.size()));
  std::array<double, 2> loss;
  kernels::UpdateDecision decision;
  std::memcpy(loss.data(), bytes.data() + kLoss, sizeof(loss));
  std::memcpy(&decision, bytes.data() + kFirst, sizeof(decision));
  return StepRecord{.loss = loss[0],
                    .num_tokens = loss[1],
                    .norm = decision.norm,
                    .skipped = decision.skipped != 0};
}

}  // namespace muster::engine

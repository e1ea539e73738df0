#include "muster/tape.h"

#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster {

namespace internal {

PooledFunction& PooledFunction::operator=(PooledFunction&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  memory_ = std::move(other.memory_);
  call_ = std::exchange(other.call_, nullptr);
  destroy_ = std::exchange(other.destroy_, nullptr);
  return *this;
}

void PooledFunction::Reset() {
  if (destroy_ != nullptr) destroy_(memory_.raw_data());
  memory_ = Tensor();
  call_ = nullptr;
  destroy_ = nullptr;
}

}  // namespace internal

Tape::Tape(TensorPool& pool, Mode mode) : pool_(pool), mode_(mode) {}

Tape::RecordedOperation& Tape::NewRecord(absl::Span<Parameter* const> weights) {
  MUSTER_CHECK(weights.size() <= kMaxWeights);
  BeginForward();
  RecordedOperation& record = records_.emplace_back();
  for (Parameter* weight : weights) {
    record.weights[record.num_weights++] = weight;
    const size_t index = weight->index();
    if (uses_left_.size() <= index) uses_left_.resize(index + 1, 0);
    ++uses_left_[index];
  }
  return record;
}

void Tape::BeginForward() {
  MUSTER_CHECK(stage_ != Stage::kWeightsAreDue);  // they would be lost
  if (stage_ == Stage::kReplayed) Clear();
  stage_ = Stage::kForward;
}

int Tape::NewSlot() {
  BeginForward();
  gradients_.emplace_back();
  return static_cast<int>(gradients_.size()) - 1;
}

Activation Tape::Watch(Tensor value) {
  if (!recording()) return {.value = std::move(value)};
  return {.value = std::move(value), .slot = NewSlot()};
}

Tensor Tape::TakeGradient(const Activation& watched) {
  MUSTER_CHECK(watched.needs_gradient());
  return std::move(gradients_[watched.slot]);
}

void Tape::AddGradient(int slot, const Tensor& gradient) {
  if (slot == Activation::kNoGradient) return;
  if (gradients_[slot].empty()) {
    gradients_[slot] = gradient;
    return;
  }
  const InputTarget target = BeginGradient(slot, gradient.dtype(), gradient.shape());
  WithFloat(gradient.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::Elementwise<T>().add(target.addend.data<T>(), gradient.data<T>(), target.out.data<T>(),
                                  gradient.num_elements());
  });
}

Tape::InputTarget Tape::BeginGradient(int slot, DType dtype, Shape shape) {
  MUSTER_CHECK(slot != Activation::kNoGradient);
  InputTarget target;
  Tensor& gradient = gradients_[slot];
  if (gradient.empty() || !gradient.IsSoleOwner()) {
    target.addend = std::move(gradient);
    gradient = pool_.Allocate(dtype, shape);
  } else {
    target.addend = gradient;
  }
  MUSTER_CHECK(gradient.shape() == shape && gradient.dtype() == dtype);
  target.out = gradient;
  return target;
}

Tensor Tape::Seed(const Activation& output, double scale) {
  MUSTER_CHECK(output.value.num_elements() == 1);
  Tensor seed = pool_.Allocate(output.value.dtype(), output.value.shape());
  WithFloat(seed.dtype(), [&](auto zero) {
    using T = decltype(zero);
    *seed.data<T>() = static_cast<T>(scale);
  });
  return seed;
}

void Tape::ReplayInput(RecordedOperation& record) {
  record.dy = std::move(gradients_[record.output_slot]);
  if (record.dy.empty()) return;  // nothing depended on this output
  if (record.input_gradient) record.input_gradient(*this, record.dy);
  record.input_gradient.Reset();
  if (!record.weight_gradient) record.dy = Tensor();
}

void Tape::ReplayWeight(RecordedOperation& record) {
  if (!record.dy.empty() && record.weight_gradient) record.weight_gradient(*this, record.dy);
  record.weight_gradient.Reset();
  record.dy = Tensor();
  for (int i = 0; i < record.num_weights; ++i) {
    Parameter& weight = *record.weights[i];
    if (--uses_left_[weight.index()] == 0 && ready_) ready_(weight);
  }
}

void Tape::Backward(const Activation& output, double scale) {
  Backward(output, Seed(output, scale));
}

void Tape::Backward(const Activation& output, Tensor gradient) {
  BeginBackward(output, std::move(gradient));
  for (; !records_.empty(); records_.pop_back()) {
    ReplayInput(records_.back());
    ReplayWeight(records_.back());
  }
  stage_ = Stage::kReplayed;
}

void Tape::BeginBackward(const Activation& output, Tensor gradient) {
  MUSTER_CHECK(output.needs_gradient());
  MUSTER_CHECK(stage_ == Stage::kForward);  // every forward pass is replayed once
  AddGradient(output.slot, gradient);
}

void Tape::BackwardInputs(const Activation& output, double scale) {
  BackwardInputs(output, Seed(output, scale));
}

void Tape::BackwardInputs(const Activation& output, Tensor gradient) {
  BeginBackward(output, std::move(gradient));
  for (size_t i = records_.size(); i-- > 0;) ReplayInput(records_[i]);
  stage_ = Stage::kWeightsAreDue;
}

void Tape::BackwardWeights() {
  MUSTER_CHECK(stage_ == Stage::kWeightsAreDue);
  for (; !records_.empty(); records_.pop_back()) ReplayWeight(records_.back());
  stage_ = Stage::kReplayed;
}

void Tape::Clear() {
  records_.clear();
  gradients_.clear();
  uses_left_.assign(uses_left_.size(), 0);
  stage_ = Stage::kEmpty;
}

}  // namespace muster

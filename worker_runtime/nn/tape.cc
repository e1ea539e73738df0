// Backward passes: recorded operations in reverse, gradients handed on as soon as they are whole.
#include "muster/tape.h"

#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

namespace internal {

namespace {

constexpr size_t kChunkBytes = 16 << 10;

}  // namespace

void* FunctionMemory::Take(size_t bytes) {
  constexpr size_t kAlignment = alignof(std::max_align_t);
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
    if (used_ > 0) ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) chunks_.emplace_back();
  Chunk& chunk = chunks_[chunk_];
  if (bytes > chunk.size) {
    chunk.size = std::max(bytes, kChunkBytes);
    chunk.bytes = std::make_unique<std::byte[]>(chunk.size);
  }
  void* taken = chunk.bytes.get() + used_;
  used_ += bytes;
  return taken;
}

void FunctionMemory::Reset() {
  chunk_ = 0;
  used_ = 0;
}

PlacedFunction& PlacedFunction::operator=(PlacedFunction&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  object_ = std::exchange(other.object_, nullptr);
  call_ = std::exchange(other.call_, nullptr);
  destroy_ = std::exchange(other.destroy_, nullptr);
  return *this;
}

void PlacedFunction::Reset() {
  if (destroy_ != nullptr) destroy_(object_);
  object_ = nullptr;
  call_ = nullptr;
  destroy_ = nullptr;
}

WeightUses::Range WeightUses::Add(absl::Span<Parameter* const> weights) {
  const size_t begin = weights_.size();
  weights_.insert(weights_.end(), weights.begin(), weights.end());
  for (const Parameter* weight : weights) {
    if (weight->frozen()) continue;
    const size_t index = weight->index();
    if (uses_left_.size() <= index) uses_left_.resize(index + 1, 0);
    ++uses_left_[index];
  }
  return {begin, weights_.size()};
}

void WeightUses::Release(Parameter& weight) {
  if (--uses_left_[weight.index()] == 0 && on_last_) on_last_(weight);
}

void WeightUses::Clear() {
  weights_.clear();
  uses_left_.assign(uses_left_.size(), 0);
}

}  // namespace internal

Tape::Tape(TensorPool& pool, Mode mode) : pool_(pool), mode_(mode), queue_(pool.device(), &pool) {}

Tape::RecordedOperation& Tape::NewRecord(absl::Span<Parameter* const> weights) {
  BeginForward();
  RecordedOperation& record = records_.emplace_back();
  record.weights = uses_.Add(weights);
  return record;
}

Tape& Tape::Inner(std::unique_ptr<Tape>& inner, Mode mode) {
  if (inner != nullptr) return *inner;
  inner = std::make_unique<Tape>(pool_, mode);
  if (mode == Mode::kInference) inner->observed_.emplace();
  return *inner;
}

void Tape::Observe(absl::Span<Parameter* const> weights) {
  for (Parameter* weight : weights) {
    if (weight->frozen()) continue;
    const bool known = std::find(observed_->begin(), observed_->end(), weight) != observed_->end();
    if (!known) observed_->push_back(weight);
  }
}

// Uses what the region that ran last on the observer has used.
Tape::RecordedOperation& Tape::NewRegion() {
  std::vector<Parameter*>& used = *observer_->observed_;
  std::reverse(used.begin(), used.end());  // the order in which their gradients become ready
  RecordedOperation& record = NewRecord(used);
  record.is_region = true;
  return record;
}

internal::DeviceIds Tape::Bring(absl::Span<const int32_t> ids) {
  const Device& device = pool_.device();
  if (device.host_reads() || !device.has_elements()) return internal::DeviceIds(ids);
  for (const BroughtIds& brought : brought_) {
    if (brought.on_host == ids) return internal::DeviceIds(brought.copy);
  }
  Tensor copy = pool_.Allocate(DType::kI32, {static_cast<int64_t>(ids.size())});
  device.Upload(queue_, ids.data(), copy.raw_data(), copy.num_bytes());
  return internal::DeviceIds(std::move(copy));
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

Activation Tape::Refuse(absl::string_view why) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(why);
  return {};
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
  if (slot == Activation::kNoGradient || gradient.empty()) return;  // empty: it was refused
  if (gradients_[slot].empty()) {
    gradients_[slot] = gradient;
    return;
  }
  const InputTarget target = BeginGradient(slot, gradient.dtype(), gradient.shape());
  operations(gradient.dtype()).add(queue_, target.addend, gradient, target.out);
}

Tape::InputTarget Tape::BeginGradient(int slot, DType dtype, Shape shape) {
  MUSTER_CHECK(slot != Activation::kNoGradient);
  InputTarget target;
  Tensor& gradient = gradients_[slot];
  if (IsOne(gradient)) one_ = nullptr;  // something is added to it
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

Tape::Seed Tape::SeedOf(const Activation& output, double scale) {
  MUSTER_CHECK(output.value.num_elements() == 1);
  Tensor seed = pool_.Allocate(output.value.dtype(), output.value.shape());
  operations(seed.dtype()).fill(queue_, scale, seed);
  one_ = scale == 1 ? seed.raw_data() : nullptr;
  return {.output = output, .gradient = std::move(seed)};
}

void Tape::EnterWeights(const RecordedOperation& record) {
  for (Parameter* weight : uses_.weights(record.weights)) weight->Enter();
}

void Tape::ReplayInput(RecordedOperation& record) {
  record.dy = std::move(gradients_[record.output_slot]);
  if (record.dy.empty()) return;  // nothing depended on this output
  if (!record.is_region) EnterWeights(record);
  if (record.input_gradient) record.input_gradient(*this, record.dy);
  record.input_gradient.Reset();
  if (!record.weight_gradient) record.dy = Tensor();
}

void Tape::ReplayWeight(RecordedOperation& record) {
  if (!record.dy.empty() && record.weight_gradient) {
    EnterWeights(record);
    record.weight_gradient(*this, record.dy);
  }
  record.weight_gradient.Reset();
  record.dy = Tensor();
  for (Parameter* weight : uses_.weights(record.weights)) {
    if (!weight->frozen()) uses_.Release(*weight);
  }
}

void Tape::Backward(const Activation& output, double scale) {
  Seed seed = SeedOf(output, scale);
  Backward(absl::MakeSpan(&seed, 1));
}

void Tape::Backward(const Activation& output, Tensor gradient) {
  Seed seed = {.output = output, .gradient = std::move(gradient)};
  Backward(absl::MakeSpan(&seed, 1));
}

void Tape::Backward(absl::Span<Seed> seeds) {
  BeginBackward(seeds);
  stage_ = Stage::kReplaysWhole;
  for (; !records_.empty(); records_.pop_back()) {
    ReplayInput(records_.back());
    ReplayWeight(records_.back());
  }
  EndReplay();
}

void Tape::EndReplay() {
  memory_.Reset();
  one_ = nullptr;
  stage_ = Stage::kReplayed;
}

void Tape::BeginBackward(absl::Span<Seed> seeds) {
  MUSTER_CHECK(status_.ok() && std::any_of(seeds.begin(), seeds.end(), [](const Seed& seed) {
                 return seed.output.needs_gradient();
               }));
  MUSTER_CHECK(stage_ == Stage::kForward);  // every forward pass is replayed once
  for (Seed& seed : seeds) {
    AddGradient(seed.output.slot, seed.gradient);
    seed.gradient = Tensor();
  }
}

void Tape::BackwardInputs(const Activation& output, double scale) {
  Seed seed = SeedOf(output, scale);
  BackwardInputs(absl::MakeSpan(&seed, 1));
}

void Tape::BackwardInputs(absl::Span<Seed> seeds) {
  BeginBackward(seeds);
  for (size_t i = records_.size(); i-- > 0;) ReplayInput(records_[i]);
  stage_ = Stage::kWeightsAreDue;
}

void Tape::BackwardWeights() {
  MUSTER_CHECK(stage_ == Stage::kWeightsAreDue);
  for (; !records_.empty(); records_.pop_back()) ReplayWeight(records_.back());
  EndReplay();
}

void Tape::Clear() {
  records_.clear();
  memory_.Reset();
  one_ = nullptr;
  gradients_.clear();
  uses_.Clear();
  status_ = absl::OkStatus();
  stage_ = Stage::kEmpty;
}

}  // namespace muster

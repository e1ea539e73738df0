#include "worker_runtime/comm/staged_call.h"

#include <utility>

#include "proto/base/status_macros.h"

namespace muster::comm {

absl::StatusOr<std::shared_ptr<StagedCompletion>> StagedCompletion::Make(
    std::function<std::string()> description, const Operation& operation, int rank, int size,
    Queue& queue, CallBuffers& buffers) {
  const Device& device = queue.device();
  std::shared_ptr<StagedCompletion> staged(new StagedCompletion(std::move(description), device));
  base::MutexLock lock(staged->put_mu_);
  const std::unique_ptr<Event> filled = device.MakeEvent();
  filled->Record(queue);
  filled->HoldUp(staged->lane_);
  const BlockCounts blocks = CountBlocks(operation.kind, size);
  const auto bytes = static_cast<size_t>(operation.bytes());
  staged->copies_.reserve(buffers.inputs.size() + 1);  // so that none moves
  staged->on_device_ = buffers.output;
  // A broadcast takes data from its root alone.
  const bool gives = operation.kind != OperationKind::kBroadcast || operation.peer == rank;
  for (const void*& input : buffers.inputs) {
    std::vector<std::byte>& copy = staged->copies_.emplace_back(bytes * blocks.input);
    if (gives) {
      MUSTER_RETURN_IF_ERROR(device.Download(staged->lane_, input, copy.data(), copy.size()));
    }
    // Backends know a call in place by the pointers. A block of something larger has a copy of its
    // own.
    const bool is_whole = blocks.input == blocks.output;
    if (input == buffers.output && is_whole) staged->output_ = &copy;
    input = copy.data();
  }
  if (buffers.output == nullptr) return staged;
  if (staged->output_ == nullptr) {
    staged->output_ = &staged->copies_.emplace_back(bytes * blocks.output);
  }
  buffers.output = const_cast<std::byte*>(staged->output_->data());
  return staged;
}

void StagedCompletion::PutOutput() {
  if (output_is_there_ != nullptr || output_ == nullptr) return;
  const Device& device = lane_.device();
  device.Upload(lane_, output_->data(), on_device_, output_->size());
  output_is_there_ = device.MakeEvent();
  output_is_there_->Record(lane_);
}

absl::Status StagedCompletion::Wait(MonoTime deadline) {
  MUSTER_RETURN_IF_ERROR(Completion::Wait(deadline));
  base::MutexLock lock(put_mu_);
  PutOutput();
  return lane_.device().Download(lane_, nullptr, nullptr, 0);
}

absl::Status StagedCompletion::Await(Queue& queue) {
  MUSTER_RETURN_IF_ERROR(Completion::Wait(MonoTime::InfiniteFuture()));
  base::MutexLock lock(put_mu_);
  PutOutput();
  if (output_is_there_ != nullptr) output_is_there_->HoldUp(queue);
  return absl::OkStatus();
}

}  // namespace muster::comm

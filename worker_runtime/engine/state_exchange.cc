#include "worker_runtime/engine/state_exchange.h"

#include <algorithm>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {
namespace {

// Rounded where the types differ: a checkpoint holds the masters of parameters of 16 bits.
void Copy(const Tensor& from, const Tensor& to) {
  Queue queue(Device::Cpu());
  queue.device().operations(from.dtype()).cast(queue, from, to);
}

}  // namespace

std::vector<StateExchange::Owned> StateExchange::OwnedBy(int rank,
                                                         const Parameter& parameter) const {
  const int64_t begin = state_.layout().offsets[parameter.index()];
  const int64_t end = begin + parameter.num_elements();
  const int size = program_.shards.size;
  std::vector<Owned> all;
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const plan::BlockRange shard = plan::ShardOf(program_.buckets[b].blocks, rank % size, size);
    const int64_t first = std::max(begin, shard.first_element());
    const int64_t last = std::min(end, shard.first_element() + shard.num_elements());
    if (first >= last) continue;
    all.push_back({.bucket = static_cast<int>(b),
                   .first_in_parameter = first - begin,
                   .first_in_shard = first - shard.first_element(),
                   .count = last - first});
  }
  return all;
}

Tensor StateExchange::OwnPart(StateKind kind, const Owned& owned) const {
  const Tensor all = kind == StateKind::kValue         ? state_.Masters(owned.bucket)
                     : kind == StateKind::kFirstMoment ? state_.FirstMoments(owned.bucket)
                                                       : state_.SecondMoments(owned.bucket);
  return all.Slice(owned.first_in_shard, {owned.count});
}

// The ranks of the first shard group own one whole together.
absl::Status StateExchange::Collect(StateKind kind, const Parameter& parameter,
                                    const Tensor& whole) const {
  if (parameter.frozen()) {
    Copy(parameter.value(), whole);
    return absl::OkStatus();
  }
  for (int rank = 0; rank < program_.shards.size; ++rank) {
    if (world_.rank() != 0 && world_.rank() != rank) continue;
    for (const Owned& owned : OwnedBy(rank, parameter)) {
      const Tensor part = whole.Slice(owned.first_in_parameter, {owned.count});
      if (rank == 0) {
        Copy(OwnPart(kind, owned), part);
      } else if (world_.rank() == 0) {
        MUSTER_RETURN_IF_ERROR(world_.Recv(BufferOfTensor(part), rank).Wait());
      } else {
        MUSTER_RETURN_IF_ERROR(world_.Send(BufferOfTensor(OwnPart(kind, owned)), 0).Wait());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StateExchange::Spread(StateKind kind, const Parameter& parameter,
                                   const Tensor& whole) const {
  const bool all_hold_it = program_.shards.size == 1 || parameter.frozen() ||
                           (kind == StateKind::kValue && state_.HoldsWhole(parameter));
  if (all_hold_it) {
    MUSTER_RETURN_IF_ERROR(world_.Broadcast(BufferOfTensor(whole), 0).Wait());
    if (parameter.frozen()) {
      Copy(whole, parameter.value());
      return absl::OkStatus();
    }
    for (const Owned& owned : OwnedBy(world_.rank(), parameter)) {
      Copy(whole.Slice(owned.first_in_parameter, {owned.count}), OwnPart(kind, owned));
    }
    if (kind == StateKind::kValue) TakeValues(parameter, whole);
    return absl::OkStatus();
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (world_.rank() != 0 && world_.rank() != rank) continue;
    for (const Owned& owned : OwnedBy(rank, parameter)) {
      const Tensor part = whole.Slice(owned.first_in_parameter, {owned.count});
      if (rank == 0) {
        Copy(part, OwnPart(kind, owned));
      } else if (world_.rank() == 0) {
        MUSTER_RETURN_IF_ERROR(world_.Send(BufferOfTensor(part), rank).Wait());
      } else {
        MUSTER_RETURN_IF_ERROR(world_.Recv(BufferOfTensor(OwnPart(kind, owned)), 0).Wait());
      }
    }
  }
  return absl::OkStatus();
}

// Also what others update.
void StateExchange::TakeValues(const Parameter& parameter, const Tensor& whole) const {
  if (state_.HoldsWhole(parameter)) Copy(whole, parameter.value());
}

}  // namespace muster::engine

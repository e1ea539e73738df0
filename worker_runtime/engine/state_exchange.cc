#include "worker_runtime/engine/state_exchange.h"

#include <algorithm>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/nn/rounding.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {

// Rounded where the types differ: a checkpoint holds the masters of parameters of 16 bits.
absl::Status StateExchange::Copy(const Tensor& from, const Tensor& to) const {
  return CopyAcross(state_.queue(), from, to);
}

int StateExchange::PlaceOf(const Parameter& parameter) const {
  const int64_t block = state_.layout().OffsetOf(parameter.index()) / plan::kBlockElements;
  int place = 0;
  while (!plan::HoldsBlock(places_[place], block)) ++place;
  return place;
}

// Nothing of a parameter of another stage.
std::vector<StateExchange::Owned> StateExchange::OwnedBy(int rank,
                                                         const Parameter& parameter) const {
  std::vector<Owned> all;
  if (rank / replicas_ != PlaceOf(parameter)) return all;
  const int64_t begin = state_.layout().OffsetOf(parameter.index());
  const int64_t end = begin + parameter.num_elements();
  const plan::Program& program = places_[PlaceOf(parameter)];
  const int size = program.shards.size;
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const plan::BlockRange shard =
        plan::ShardOf(program.buckets[b].blocks, rank % replicas_ % size, size);
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

// The ranks of a stage's first shard group own one whole together.
absl::Status StateExchange::Collect(StateKind kind, const Parameter& parameter,
                                    const Tensor& whole) const {
  const int first = PlaceOf(parameter) * replicas_;
  for (int rank = first; rank < first + places_[0].shards.size; ++rank) {
    if (world_.rank() != 0 && world_.rank() != rank) continue;
    for (const Owned& owned : OwnedBy(rank, parameter)) {
      const Tensor part = whole.Slice(owned.first_in_parameter, {owned.count});
      if (rank == 0) {
        MUSTER_RETURN_IF_ERROR(Copy(OwnPart(kind, owned), part));
      } else if (world_.rank() == 0) {
        MUSTER_RETURN_IF_ERROR(world_.Recv(BufferOfTensor(part), rank).Wait());
      } else {
        MUSTER_RETURN_IF_ERROR(SendOwn(OwnPart(kind, owned), part));
      }
    }
  }
  return absl::OkStatus();
}

// What is of another type than the array, as frozen parameters of 16 bits are, is converted on its
// own rank, by way of its place in that rank's `whole`.
absl::Status StateExchange::SendOwn(const Tensor& own, const Tensor& part) const {
  if (own.dtype() == part.dtype()) return world_.Send(BufferOfTensor(own), 0, OfDevice()).Wait();
  MUSTER_RETURN_IF_ERROR(Copy(own, part));
  return world_.Send(BufferOfTensor(part), 0).Wait();
}

absl::Status StateExchange::ReceiveOwn(const Tensor& own, const Tensor& part, int root) const {
  if (own.dtype() == part.dtype()) {
    return world_.Recv(BufferOfTensor(own), root, OfDevice()).Wait();
  }
  MUSTER_RETURN_IF_ERROR(world_.Recv(BufferOfTensor(part), root).Wait());
  return Copy(part, own);
}

std::vector<ElementRange> StateExchange::OwnRanges(const Parameter& parameter) const {
  std::vector<ElementRange> ranges;
  for (const Owned& owned : OwnedBy(world_.rank(), parameter)) {
    ranges.push_back({owned.first_in_parameter, owned.first_in_parameter + owned.count});
  }
  return ranges;
}

absl::Status StateExchange::CopyOwn(StateKind kind, const Parameter& parameter,
                                    const Tensor& own) const {
  int64_t copied = 0;
  for (const Owned& owned : OwnedBy(world_.rank(), parameter)) {
    MUSTER_RETURN_IF_ERROR(Copy(OwnPart(kind, owned), own.Slice(copied, {owned.count})));
    copied += owned.count;
  }
  return absl::OkStatus();
}

absl::Status StateExchange::Spread(StateKind kind, const Parameter& parameter, const Tensor& whole,
                                   int root) const {
  const plan::Program& program = places_[PlaceOf(parameter)];
  const int bucket = program.bucket_of_unit[parameter.frozen()][parameter.unit()];
  const bool is_whole = kind == StateKind::kValue && !program.buckets[bucket].gathered;
  if (is_whole || program.shards.size == 1) return SpreadToAll(kind, parameter, whole, root);
  const int first = PlaceOf(parameter) * replicas_;
  for (int rank = first; rank < first + replicas_; ++rank) {
    if (world_.rank() != root && world_.rank() != rank) continue;
    for (const Owned& owned : OwnedBy(rank, parameter)) {
      const Tensor part = whole.Slice(owned.first_in_parameter, {owned.count});
      if (rank == root) {
        MUSTER_RETURN_IF_ERROR(Copy(part, OwnPart(kind, owned)));
      } else if (world_.rank() == root) {
        MUSTER_RETURN_IF_ERROR(world_.Send(BufferOfTensor(part), rank).Wait());
      } else {
        MUSTER_RETURN_IF_ERROR(ReceiveOwn(OwnPart(kind, owned), part, root));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StateExchange::SpreadToAll(StateKind kind, const Parameter& parameter,
                                        const Tensor& whole, int root) const {
  MUSTER_RETURN_IF_ERROR(world_.Broadcast(BufferOfTensor(whole), root).Wait());
  for (const Owned& owned : OwnedBy(world_.rank(), parameter)) {
    MUSTER_RETURN_IF_ERROR(
        Copy(whole.Slice(owned.first_in_parameter, {owned.count}), OwnPart(kind, owned)));
  }
  const bool has_values = state_.HoldsWhole(parameter) || state_.Borrows(parameter);
  if (kind != StateKind::kValue || !has_values) return absl::OkStatus();
  return CopyToValue(whole, parameter);
}

absl::Status StateExchange::CopyToValue(const Tensor& masters, const Parameter& parameter) const {
  if (!rounding_ || parameter.frozen()) return Copy(masters, parameter.value());
  TensorPool pool;
  const Tensor rounded = pool.Allocate(parameter.dtype(), masters.shape());
  RoundByDraws(masters.span<float>(),
               {.key_low = rounding_->key.low,
                .key_high = rounding_->key.high,
                .first_element = state_.layout().offsets[parameter.index()]},
               rounding_->updates, static_cast<uint16_t*>(rounded.raw_data()));
  return Copy(rounded, parameter.value());
}

}  // namespace muster::engine

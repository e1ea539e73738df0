#include "worker_runtime/engine/moment_exchange.h"

#include <cstring>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/plan/block_layout.h"

namespace muster::engine {
namespace {

using plan::BlockRange;

}  // namespace

MomentExchange::MomentExchange(Communicator& world, const RankState& state,
                               const plan::Program& program)
    : world_(world), state_(state), program_(program), sharded_(program.sharded) {}

void MomentExchange::Allocate(WholeMoments& whole) const {
  if (!sharded_) {
    whole.first = state_.first_moments();
    whole.second = state_.second_moments();
  } else if (world_.rank() == 0) {
    const Shape shape = {state_.layout().num_elements()};
    const auto like = [&](const Tensor& own) {
      return own.empty() ? Tensor() : whole.pool.Allocate(own.dtype(), shape);
    };
    whole.first = like(state_.first_moments());
    whole.second = like(state_.second_moments());
  }
}

absl::Status MomentExchange::Collect(const WholeMoments& whole) const {
  return Exchange(whole, Way::kCollect);
}
absl::Status MomentExchange::Spread(const WholeMoments& whole) const {
  return Exchange(whole, Way::kSpread);
}

absl::Status MomentExchange::Exchange(const WholeMoments& whole, Way way) const {
  if (!sharded_) return absl::OkStatus();
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const int bucket = static_cast<int>(b);
    for (int rank = 0; rank < world_.size(); ++rank) {
      const BlockRange shard = plan::ShardOf(program_.buckets[b].blocks, rank, world_.size());
      if (shard.num_blocks() == 0 || (world_.rank() != 0 && world_.rank() != rank)) continue;
      const auto part = [&](const Tensor& all) {
        return all.empty() ? Tensor() : all.Slice(shard.first_element(), {shard.num_elements()});
      };
      MUSTER_RETURN_IF_ERROR(
          ExchangeShard(part(whole.first), state_.FirstMoments(bucket), rank, way));
      MUSTER_RETURN_IF_ERROR(
          ExchangeShard(part(whole.second), state_.SecondMoments(bucket), rank, way));
    }
  }
  return absl::OkStatus();
}

absl::Status MomentExchange::ExchangeShard(const Tensor& part, const Tensor& own, int rank,
                                           Way way) const {
  if (own.empty() && part.empty()) return absl::OkStatus();  // the update's rule keeps none
  const bool collects = way == Way::kCollect;
  if (rank == 0) {
    const Tensor& from = collects ? own : part;
    const Tensor& to = collects ? part : own;
    std::memcpy(to.raw_data(), from.raw_data(), from.num_bytes());
    return absl::OkStatus();
  }
  const bool is_zero = world_.rank() == 0;
  const Buffer buffer = BufferOfTensor(is_zero ? part : own);
  return (is_zero == collects ? world_.Recv(buffer, is_zero ? rank : 0)
                              : world_.Send(buffer, is_zero ? rank : 0))
      .Wait();
}

}  // namespace muster::engine

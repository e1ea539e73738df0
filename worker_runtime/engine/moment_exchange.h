// The optimizer's state whole on rank 0, for checkpoints, also where each rank holds a shard of it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// Of all blocks of the model, in their order: the rank's own memory where it holds all of them, else
// memory of `pool` on rank 0 and nothing on the others. Empty where the update's rule keeps none.
struct WholeMoments {
  TensorPool pool;
  Tensor first;
  Tensor second;
};

// Threads: thread-compatible; every rank calls the same functions.
class MomentExchange {
 public:
  // All outlive this.
  MomentExchange(Communicator& world, const RankState& state, const plan::Program& program);

  void Allocate(WholeMoments& whole) const;
  // From the ranks to rank 0, and back. Errors: the communicator's.
  absl::Status Collect(const WholeMoments& whole) const;
  absl::Status Spread(const WholeMoments& whole) const;

 private:
  enum class Way { kCollect, kSpread };
  absl::Status Exchange(const WholeMoments& whole, Way way) const;
  absl::Status ExchangeShard(const Tensor& part, const Tensor& own, int rank, Way way) const;

  Communicator& world_;
  const RankState& state_;
  const plan::Program& program_;
  const bool sharded_;
};

}  // namespace muster::engine

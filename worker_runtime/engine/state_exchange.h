// The training state whole on one rank, array by array, for checkpoints and for those who join,
// also where each rank holds shards of it. No rank ever holds more than one array that is not its
// own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/communicator.h"
#include "muster/parameter.h"
#include "muster/rng.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/engine/state_sources.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

enum class StateKind : uint8_t { kValue, kFirstMoment, kSecondMoment };

// How values are rounded that follow their masters by draws (kernels/rounding.h).
struct ValueRounding {
  PhiloxKey key;
  int64_t updates = 0;  // that the masters have taken
};

// Threads: thread-compatible; every rank calls the same functions, for the same arrays.
class StateExchange {
 public:
  // All outlive this. `places`: the program of the first rank at each place of a pipeline.
  // `rounding`: of what is spread; none: to nearest.
  StateExchange(Communicator& world, RankState& state, absl::Span<const plan::Program> places,
                std::optional<ValueRounding> rounding = std::nullopt)
      : world_(world),
        state_(state),
        places_(places),
        rounding_(rounding),
        replicas_(world.size() / static_cast<int>(places.size())) {}

  // A parameter's array from the ranks that own it to rank 0's `whole`, and from that of rank
  // `root` to all that hold some of it. Errors: the communicator's.
  //
  // Shapes: whole [parameter.num_elements()], on every rank, in memory of the host.
  absl::Status Collect(StateKind kind, const Parameter& parameter, const Tensor& whole) const;
  absl::Status Spread(StateKind kind, const Parameter& parameter, const Tensor& whole,
                      int root) const;
  // What this rank owns of each of its arrays: as their elements, in some order; and an array's in
  // that order. No other rank has a part in that. Errors: the device's.
  //
  // Shapes: own [elements that this rank owns], in memory of the host.
  std::vector<ElementRange> OwnRanges(const Parameter& parameter) const;
  absl::Status CopyOwn(StateKind kind, const Parameter& parameter, const Tensor& own) const;

 private:
  // Elements of a parameter that a rank owns.
  struct Owned {
    int bucket = 0;
    int64_t first_in_parameter = 0;
    int64_t first_in_shard = 0;
    int64_t count = 0;
  };
  absl::Status Copy(const Tensor& from, const Tensor& to) const;
  // The value of a parameter from its masters, which lie whole on the host.
  absl::Status CopyToValue(const Tensor& masters, const Parameter& parameter) const;
  // Options of calls with the state's own memory.
  CallOptions OfDevice() const { return {.queue = &state_.queue()}; }
  int PlaceOf(const Parameter& parameter) const;
  std::vector<Owned> OwnedBy(int rank, const Parameter& parameter) const;
  // Sends `whole` from `root` to all ranks, of which each takes what it holds.
  absl::Status SpreadToAll(StateKind kind, const Parameter& parameter, const Tensor& whole,
                           int root) const;
  // This rank's part of an array, to rank 0 and from `root`; `part` is its place in `whole`.
  absl::Status SendOwn(const Tensor& own, const Tensor& part) const;
  absl::Status ReceiveOwn(const Tensor& own, const Tensor& part, int root) const;
  // This rank's memory of one.
  Tensor OwnPart(StateKind kind, const Owned& owned) const;

  Communicator& world_;
  RankState& state_;
  const absl::Span<const plan::Program> places_;
  const std::optional<ValueRounding> rounding_;
  const int replicas_;
};

}  // namespace muster::engine

// The training state whole on rank 0, array by array, for checkpoints, also where each rank holds
// shards of it. No rank ever holds more than one array that is not its own.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "muster/communicator.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

enum class StateKind : uint8_t { kValue, kFirstMoment, kSecondMoment };

// Threads: thread-compatible; every rank calls the same functions, for the same arrays.
class StateExchange {
 public:
  // All outlive this. Not of pipelines.
  StateExchange(Communicator& world, RankState& state, const plan::Program& program)
      : world_(world), state_(state), program_(program) {}

  DType TypeOf(StateKind kind) const {
    return kind == StateKind::kValue ? program_.types.master : program_.types.moments;
  }

  // A parameter's array from the ranks that own it to rank 0's `whole`, and from there to all that
  // hold some of it. Errors: the communicator's.
  //
  // Shapes: whole [parameter.num_elements()], on every rank.
  absl::Status Collect(StateKind kind, const Parameter& parameter, const Tensor& whole) const;
  absl::Status Spread(StateKind kind, const Parameter& parameter, const Tensor& whole) const;

 private:
  // Elements of a parameter that a rank owns.
  struct Owned {
    int bucket = 0;
    int64_t first_in_parameter = 0;
    int64_t first_in_shard = 0;
    int64_t count = 0;
  };
  std::vector<Owned> OwnedBy(int rank, const Parameter& parameter) const;
  // This rank's memory of one.
  Tensor OwnPart(StateKind kind, const Owned& owned) const;
  void TakeValues(const Parameter& parameter, const Tensor& whole) const;

  Communicator& world_;
  RankState& state_;
  const plan::Program& program_;
};

}  // namespace muster::engine

// Units of a sharded model that are used between steps, as for generating text: nothing is gathered
// ahead then, each unit comes alone when it is used, from the ranks that hold it.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/engine/rig.h"

namespace muster::engine {

// Threads: thread-compatible; all ranks use the same units in the same order.
class UnitsAlone {
 public:
  // `rig` outlives this.
  explicit UnitsAlone(Rig& rig) : rig_(rig) {}

  // An operation is about to use a parameter of `unit`. Whatever fails, the unit has memory, so
  // that a model may run to its end; Leave says what did.
  void Enter(int unit);
  // Makes `part` the sum over the tensor ranks, which call this alike. Leave says what failed.
  void AddUp(const Tensor& part);
  // Gives up what is there. Errors: the communicator's, of the units since the last call.
  absl::Status Leave();

 private:
  bool IsGathered(int unit) const;
  absl::Status Gather(int unit);
  absl::Status GatherBucket(int bucket);
  void Release();

  Rig& rig_;
  int unit_ = plan::kNone;  // the one that is there
  absl::Status error_;
};

}  // namespace muster::engine

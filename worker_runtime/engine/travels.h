// Collectives and transfers of a step: those under way, in the order of their start, and those that
// have arrived.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "muster/tensor.h"
#include "muster/work.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/stage_transfers.h"

namespace muster::engine {

// Threads: thread-compatible.
class Travels {
 public:
  // Both outlive this.
  Travels(Rig& rig, StageTransfers& transfers) : rig_(rig), transfers_(transfers) {}

  // A step begins, or what was started was kept by a capture and did not run.
  void Forget();

  void Start(int action);
  // The whole step travels as one piece of work.
  void Launch(Work launched);

  // When it was started, and from when to when the host waited.
  struct Times {
    MonoTime since;
    MonoTime wait_began;
    MonoTime wait_ended;
    MonoTime finished;
  };
  // Waits for `action`, which is under way, and puts what came in its place. Errors: the
  // communicator's.
  absl::StatusOr<Times> Await(int action);
  // Waits on the host for what has arrived as far as the device's queue knows, or was launched.
  absl::Status AwaitOnHost();
  // Waits, after a failure, for what is under way, which uses memory of the engine. What has
  // arrived on a device needs no wait: whatever its queue is given later, as a snapshot's copies,
  // runs behind it. Returns the first error.
  absl::Status AwaitRest();

  // What reductions of the step took. Collectives of a communicator run one after the other.
  absl::Duration TimeOfReductions() const;

 private:
  struct Travel {
    int action = 0;
    std::vector<Work> works;  // of a transfer one for each tensor
    MonoTime since;
    std::vector<Tensor> memory;  // of a transfer
    MonoTime FinishedAt() const;
  };

  absl::Status InWordsOfStages(const plan::Action& action, absl::Status status) const;

  Rig& rig_;
  StageTransfers& transfers_;
  std::vector<Travel> under_way_;
  std::vector<Travel> arrived_;  // of this step
  Work launched_;
};

}  // namespace muster::engine

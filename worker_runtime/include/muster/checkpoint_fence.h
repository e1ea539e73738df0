// The fence that decides who may publish a checkpoint. A node that is cut off is replaced while its
// workers may still run, so there may be two rank 0s with one directory; the job's rendezvous lets
// the present round alone publish. Runtime::checkpoint_fence gives it, EngineOptions takes it.
//
// Pure values.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace muster {

struct CheckpointFence {
  // Which round of which life of the job writes; noted in the checkpoint. `instance` is 0 without
  // an agent: nobody is asked then, and whatever is in the way is replaced.
  int64_t instance = 0;
  int64_t round = -1;
  // Asked by rank 0 once a checkpoint is written, before it is published; may be empty.
  //
  // Errors: it may not be published. kFailedPrecondition: not now, because the rendezvous is out of
  //         reach or has not heard of this node for a while. kCancelled: never, because another
  //         round has begun, and this process is about to be stopped.
  std::function<absl::Status(int64_t step)> commit;
};

// A checkpoint was written well and may not be published: train on, earlier ones stay as they are.
inline bool IsRefusedByFence(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsCancelled(status);
}

// So refused that it is of no use to try again: nothing of this process will be published.
inline bool IsRefusedForGood(const absl::Status& status) { return absl::IsCancelled(status); }

}  // namespace muster

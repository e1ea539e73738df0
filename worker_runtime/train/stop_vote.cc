#include "worker_runtime/train/stop_vote.h"

#include "proto/base/status_macros.h"

namespace muster::train {

void StopVote::Begin(int own_signal) {
  signal_[0] = own_signal;
  work_ = world_.AllReduce(BufferOf(signal_), {.op = ReduceOp::kMax});
}

absl::StatusOr<int> StopVote::End() {
  MUSTER_RETURN_IF_ERROR(work_.Wait());
  return signal_[0];
}

}  // namespace muster::train

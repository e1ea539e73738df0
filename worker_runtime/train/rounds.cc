#include "worker_runtime/train/rounds.h"

#include "worker_runtime/train/failure_notice.h"

namespace muster::train {

void TrainingSoFar::GoOnAfter(int64_t step) {
  if (last_step > step) {
    repeated_steps += last_step - step;
    history.ForgetAfter(step);
  }
  last_step = step;
}

AfterFailure DecideAfterFailure(bool survives, const absl::Status& failure, int signal) {
  if (!survives || !(MayComeFromPeers(failure) || absl::IsCancelled(failure))) {
    return AfterFailure::kEnd;
  }
  return signal != 0 ? AfterFailure::kEndBySignal : AfterFailure::kAskForRound;
}

// That nobody knows of another round says nothing of what has failed.
const absl::Status& FailureToSay(const absl::Status& failure, const absl::Status& no_round) {
  return absl::IsCancelled(no_round) ? no_round : failure;
}

}  // namespace muster::train

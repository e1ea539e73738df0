// muster-train from its first round to its exit code.
#pragma once

#include <memory>

#include "muster/runtime.h"
#include "worker_runtime/train/train_options.h"

namespace muster::train {

// Trains in the round of `runtime`. With --survive, a round that ends because other workers are
// lost is followed by the next, in which a new Trainer goes on with what the last one let go of. A
// failure is said (SayFailure). Returns the exit code, or ends the process by the signal that ends
// the training.
int TrainInRounds(std::unique_ptr<Runtime> runtime, const TrainOptions& options);

}  // namespace muster::train

// The batches of a step that a reader gives to a model in units: its tape reads the ids until the
// step has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/data.h"
#include "muster/device.h"
#include "muster/tape.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/step_form.h"
#include "worker_runtime/engine/training_progress.h"

namespace muster::engine {

// Threads: thread-compatible.
class BatchFeed {
 public:
  // Both outlive this.
  BatchFeed(Rig& rig, const TrainingProgress& progress);

  // The next batch of `reader`. Errors: the reader's; kInvalidArgument: it is that of another rank,
  // number of ranks or of micro-batches, or of another step.
  absl::StatusOr<const Batch*> Next(BatchReader& reader) const;

  // A step on batches of `reader` begins. On a device that the host does not reach they all are
  // read, and on their way there by the copy lane. Errors: as Next, and the groups end.
  absl::Status Begin(BatchReader& reader);
  // The batch of micro-batch `index`, for `tape`; the queue waits until it is there unless it
  // `is_capturing`. Errors: as Next.
  absl::StatusOr<const Batch*> At(BatchReader& reader, Tape& tape, int64_t index,
                                  bool is_capturing);
  // The queue waits for all that are on their way.
  void HoldUp();

  // One for each micro-batch; 0 where another stage takes the loss.
  std::vector<double> TargetsThatCount() const;
  // What makes a step on them like another.
  StepShape Shape() const;
  // The bytes reserved on the device.
  int64_t bytes_reserved() const { return static_cast<int64_t>(pool_.usage().bytes_reserved); }

 private:
  // A batch on a device that the host cannot reach.
  struct Place {
    Tensor inputs;
    Tensor targets;
    std::unique_ptr<Event> is_there;
  };
  absl::Status Bring(BatchReader& reader);

  Rig& rig_;
  const TrainingProgress& progress_;
  TensorPool pool_;  // of batches on their way
  Queue copies_;
  std::vector<Batch> batches_;  // by micro-batch
  std::vector<Place> places_;   // likewise
};

}  // namespace muster::engine

// Forward and backward passes of a program.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/pipeline.h"
#include "muster/tape.h"
#include "worker_runtime/engine/passes_in_flight.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/stage_transfers.h"
#include "worker_runtime/engine/updater.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// Computes a FORWARD of the program.
using PassForward = absl::FunctionRef<absl::StatusOr<StageOutput>(
    Tape& tape, const plan::StagePass& pass, absl::Span<const Activation> received)>;

// Threads: thread-compatible.
class StagePasses {
 public:
  // Both outlive this. `updater` knows what the loss is scaled by.
  StagePasses(Rig& rig, const Updater& updater);

  // `use_error` is written while the model runs, by uses that cannot return it, and read after it.
  // Errors: it, and the pass's own, which ends the groups.
  absl::Status Forward(const plan::StagePass& pass, PassForward forward,
                       const absl::Status& use_error);
  // `watch` is called before the last backward pass of a step, if its gradients are reduced as they
  // come: to be told by its tape.
  absl::Status Backward(const plan::Pass& pass, absl::FunctionRef<void(Tape&)> watch,
                        const absl::Status& use_error);
  // Whether it is the last backward pass of a stage in a step that writes gradients.
  bool IsLast(const plan::StagePass& pass) const;

  StageTransfers& transfers() { return transfers_; }
  // A step has failed: nothing is under way.
  void Clear() { in_flight_.Clear(); }

 private:
  void Replay(plan::PassKind kind, PassInFlight& pass);
  // Gradients of weights of a stage go to where the pass says, over what an earlier one has left.
  void BindGradients(const plan::Pass& pass);

  Rig& rig_;
  const Updater& updater_;
  PassesInFlight in_flight_;
  StageTransfers transfers_;
};

}  // namespace muster::engine

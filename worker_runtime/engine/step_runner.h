// The loop of a step: asks the executor what to start, computes, starts collectives and transfers,
// and waits where nothing can be computed.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/engine.h"
#include "muster/parameter.h"
#include "muster/tape.h"
#include "muster/work.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/engine/executor_core.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/stage_passes.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/travels.h"
#include "worker_runtime/engine/updater.h"

namespace muster::engine {

// A step is Begin, Put (or Launch) once, and End or, where any of them failed, Fail.
//
// Threads: thread-compatible.
class StepRunner {
 public:
  // All outlive this. `waits_before_updates`: see EngineOptions.
  StepRunner(Rig& rig, Updater& updater, const StepListeners& listeners,
             bool waits_before_updates = false);

  // The rig has another program (Rig::Recompile).
  void OnProgram() { core_.emplace(rig_.program); }

  void Begin(MonoTime now);
  // Carries out the program, after Reduction::Begin. Errors: those of `forward` and of what a step
  // does; Fail or Forget must follow.
  absl::Status Put(PassForward forward);
  // The same while the device keeps what it is sent. OnCaptured must follow the capture's end.
  absl::Status PutIntoCapture(PassForward forward);
  // What was put was kept and did not run.
  void OnCaptured() { travels_.Forget(); }
  // `step`: the whole of it, as captured before.
  void Launch(Work step);
  // A capture was given up: its passes are of no use.
  void Forget();
  // Waits for the end. Errors: as Put.
  absl::Status End();
  // Waits for what is under way. Whether the step has changed some of what this rank owns of
  // parameters and optimizer, and not all.
  bool Fail(const absl::Status& failure);

  // A step is under way: uses of the model are of its passes.
  bool is_in_step() const { return in_step_; }
  bool is_capturing() const { return is_capturing_; }
  // An operation is about to use `parameter` in a step: waits until its unit is there. The model
  // goes on whatever happens: it has no way to say that it stops. After a failure it computes with
  // what lies there, and the step ends with that failure.
  void Enter(const Parameter& parameter);
  // A pass adds up over the tensor ranks: waits for the sum, in the place of `part`. Failures are
  // as Enter's.
  void AddUp(const Tensor& part);

  // The step that has ended.
  const StepResult& result() const { return result_; }
  // Parameters in the order in which their gradients came, if EngineSetUp::learns_order.
  const std::vector<int>& observed_gradients() const { return observed_gradients_; }

 private:
  absl::Status CarryOut(PassForward forward);
  absl::Status EndOnDevice();
  // Starts them; one that computes waits in `to_compute_`.
  void Start(absl::Span<const int> actions);
  // Takes notice of what has ended; waits for `action`.
  absl::Status Await(int action);
  void Complete(int action) { Start(core_->Step(Done{action})); }
  void Tell(TimedAction::Lane lane, int action, MonoTime begin, MonoTime end) const;
  absl::Status Compute(const plan::Action& action, PassForward forward);
  absl::Status Forward(const plan::Pass& pass, PassForward forward);
  absl::Status Backward(const plan::Pass& pass);
  absl::Status DecideUpdate();
  absl::Status JudgeStep();
  void Update(const plan::Update& update);
  int NumUpdates() const;
  // The tape of the pass at hand tells which gradients are written for the last time.
  void WatchGradients(Tape& tape);
  void EnterNext(const Parameter& parameter);
  // Waits until the pass has what the use or sum needs that it has come to.
  absl::Status AwaitUse();

  // Constant after construction.
  Rig& rig_;
  Updater& updater_;
  const StepListeners& listeners_;
  const bool waits_before_updates_;

  StagePasses passes_;
  Travels travels_;
  std::optional<ExecutorCore> core_;

  // The step under way.
  MonoTime began_;
  bool in_step_ = false;
  bool is_capturing_ = false;
  // Updates to come, once it may have changed parameters or optimizer: some but not all are done.
  // On a device, whose updates are sent ahead, never none.
  std::optional<int> updates_left_;
  int to_compute_ = plan::kNone;
  absl::Status use_error_;  // of a use within a pass, which cannot return it
  std::vector<int> observed_gradients_;
  StepResult result_;
};

}  // namespace muster::engine

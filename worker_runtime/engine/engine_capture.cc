// A whole step as one piece of work of the device: captured from a step like those before it, then
// launched. What differs from step to step lies in the device's memory before it begins: ids,
// tokens, learning rate, loss scale.
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"

namespace muster {

using engine::StepForm;
using engine::StepShape;

// The host adds ordered sums of several ranks.
bool Engine::State::HasForms() const {
  return !forms.are_settled() && world.captures() && (world.size() == 1 || !program.ordered);
}

StepShape Engine::State::ShapeOfBatches() const {
  return {
      .batch = batches.front().batch, .sequence = batches.front().sequence, .pool = pool.usage()};
}

absl::StatusOr<int32_t> Engine::State::WorstOfRanks(int32_t own) {
  if (world.size() == 1) return own;
  std::vector<int32_t> worst = {own};
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(worst), {.op = ReduceOp::kMin}).Wait());
  return worst[0];
}

absl::Status Engine::State::PutInForm(PassForward forward, bool from_reader) {
  const bool has_batches = from_reader && queue.device().captures();
  if (!HasForms() || (world.size() == 1 && !has_batches)) {
    reduction->Begin();
    return PutStep(forward);
  }
  const StepShape before = has_batches ? ShapeOfBatches() : StepShape();
  const StepForm own = has_batches ? forms.Propose(before) : StepForm::kNever;
  MUSTER_ASSIGN_OR_RETURN(const int32_t worst, WorstOfRanks(static_cast<int32_t>(own)));
  const auto form = static_cast<StepForm>(worst);
  forms.Agreed(form);
  if (form != StepForm::kLaunch) captured.reset();
  if (form == StepForm::kNever) {
    reduction->Begin();
    return PutStep(forward);
  }
  return PutBatches(forward, form, before);
}

// A capture that fails on any rank has changed nothing: the step is put there as ever, and no other
// is tried.
absl::Status Engine::State::PutBatches(PassForward forward, StepForm form,
                                       const StepShape& before) {
  for (const BatchPlace& place : batch_places) place.is_there->HoldUp(queue);
  const std::vector<double> tokens = TargetsThatCount();
  reduction->Begin(tokens);
  if (form == StepForm::kCapture) {
    MUSTER_ASSIGN_OR_RETURN(const bool by_all, CaptureStep(forward));
    forms.WasCaptured(by_all);
    if (!by_all) {
      captured.reset();
      ForgetStep();
      reduction->Begin();
      return PutStep(forward);
    }
  }
  if (form == StepForm::kCapture || form == StepForm::kLaunch) {
    Mark(Phase::kForward);
    arrived.clear();
    is_updating = true;
    launched = captured->Launch(queue);
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(PutStep(forward));
  // A model that counts otherwise does not know its number of tokens before it has run.
  if (reduction->tokens() != tokens) forms.Decline();
  forms.WasPut(before, ShapeOfBatches());
  return absl::OkStatus();
}

absl::StatusOr<bool> Engine::State::CaptureStep(PassForward forward) {
  const absl::Status own = CaptureOwnStep(forward);
  MUSTER_ASSIGN_OR_RETURN(const int32_t worst, WorstOfRanks(own.ok() ? 1 : 0));
  return worst != 0;
}

absl::Status Engine::State::CaptureOwnStep(PassForward forward) {
  MUSTER_RETURN_IF_ERROR(world.BeginCapture(queue));
  is_capturing = true;
  const absl::Status status = PutStep(forward);
  is_capturing = false;
  auto work = world.EndCapture(queue);
  // They were kept, and did not run.
  travels.clear();
  arrived.clear();
  MUSTER_RETURN_IF_ERROR(status);
  MUSTER_RETURN_IF_ERROR(work.status());
  if (reduction->tokens() != TargetsThatCount()) {
    return absl::InternalError("the model counts tokens other than those of its targets");
  }
  captured = *std::move(work);
  return absl::OkStatus();
}

}  // namespace muster

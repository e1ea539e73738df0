#include "worker_runtime/engine/captured_steps.h"

#include <utility>
#include <vector>

#include "proto/base/status_macros.h"

namespace muster::engine {

CapturedSteps::CapturedSteps(Rig& rig, BatchFeed& feed, StepRunner& runner,
                             const StepListeners& listeners, std::optional<bool> wanted)
    : rig_(rig), feed_(feed), runner_(runner), listeners_(listeners) {
  if (!wanted.value_or(rig.world.size() == 1)) forms_.Decline();
}

void CapturedSteps::Forget() {
  captured_.reset();
  forms_.Forget();
}

// The host adds ordered sums of several ranks.
bool CapturedSteps::HasForms() const {
  return !forms_.are_settled() && rig_.world.captures() &&
         (rig_.world.size() == 1 || !rig_.program.ordered);
}

absl::StatusOr<int32_t> CapturedSteps::WorstOfRanks(int32_t own) {
  if (rig_.world.size() == 1) return own;
  std::vector<int32_t> worst = {own};
  MUSTER_RETURN_IF_ERROR(rig_.world.AllReduce(BufferOf(worst), {.op = ReduceOp::kMin}).Wait());
  return worst[0];
}

absl::Status CapturedSteps::Put(PassForward forward, bool from_reader) {
  const bool has_batches = from_reader && rig_.queue.device().captures();
  if (!HasForms() || (rig_.world.size() == 1 && !has_batches)) {
    rig_.reduction->Begin();
    return runner_.Put(forward);
  }
  const StepShape before = has_batches ? feed_.Shape() : StepShape();
  const StepForm own = has_batches ? forms_.Propose(before) : StepForm::kNever;
  MUSTER_ASSIGN_OR_RETURN(const int32_t worst, WorstOfRanks(static_cast<int32_t>(own)));
  const auto form = static_cast<StepForm>(worst);
  forms_.Agreed(form);
  if (form != StepForm::kLaunch) captured_.reset();
  if (form == StepForm::kNever) {
    rig_.reduction->Begin();
    return runner_.Put(forward);
  }
  return PutBatches(forward, form, before);
}

// A capture that fails on any rank has changed nothing: the step is put there as ever, and no other
// is tried.
absl::Status CapturedSteps::PutBatches(PassForward forward, StepForm form,
                                       const StepShape& before) {
  feed_.HoldUp();
  const std::vector<double> tokens = feed_.TargetsThatCount();
  rig_.reduction->Begin(tokens);
  if (form == StepForm::kCapture) {
    MUSTER_ASSIGN_OR_RETURN(const bool by_all, Capture(forward));
    forms_.WasCaptured(by_all);
    if (!by_all) {
      captured_.reset();
      runner_.Forget();
      rig_.reduction->Begin();
      return runner_.Put(forward);
    }
  }
  if (form == StepForm::kCapture || form == StepForm::kLaunch) {
    listeners_.Mark(Phase::kForward);
    runner_.Launch(captured_->Launch(rig_.queue));
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(runner_.Put(forward));
  // A model that counts otherwise does not know its number of tokens before it has run.
  if (rig_.reduction->tokens() != tokens) forms_.Decline();
  forms_.WasPut(before, feed_.Shape());
  return absl::OkStatus();
}

absl::StatusOr<bool> CapturedSteps::Capture(PassForward forward) {
  const absl::Status own = CaptureOwn(forward);
  MUSTER_ASSIGN_OR_RETURN(const int32_t worst, WorstOfRanks(own.ok() ? 1 : 0));
  return worst != 0;
}

absl::Status CapturedSteps::CaptureOwn(PassForward forward) {
  MUSTER_RETURN_IF_ERROR(rig_.world.BeginCapture(rig_.queue));
  const absl::Status status = runner_.PutIntoCapture(forward);
  auto work = rig_.world.EndCapture(rig_.queue);
  runner_.OnCaptured();
  MUSTER_RETURN_IF_ERROR(status);
  MUSTER_RETURN_IF_ERROR(work.status());
  if (rig_.reduction->tokens() != feed_.TargetsThatCount()) {
    return absl::InternalError("the model counts tokens other than those of its targets");
  }
  captured_ = *std::move(work);
  return absl::OkStatus();
}

}  // namespace muster::engine

// A whole step as one piece of work of the device: captured from a step like those before it, then launched. What
// differs from step to step lies in the device's memory before it begins: ids, tokens, learning rate, loss scale.
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"

namespace muster {
namespace {

bool IsSame(const TensorPool::Usage& a, const TensorPool::Usage& b) {
  return a.system_allocations == b.system_allocations && a.bytes_reserved == b.bytes_reserved;
}

}  // namespace

// What several ranks exchange is waited for by the host, or started by other threads.
bool Engine::State::MayCapture() const {
  return captures_steps && world.size() == 1 && queue.device().captures();
}

// Three steps of one size lead there: the first takes memory, the second none, the third is captured. A capture
// that fails has changed nothing: the step is put there as ever, and no other is tried.
absl::Status Engine::State::PutOrLaunch(StageForward forward) {
  for (const BatchPlace& place : batch_places) place.is_there->HoldUp(queue);
  const std::vector<double> tokens = TargetsThatCount();
  reduction->Begin(tokens);
  const TensorPool::Usage before = pool.usage();
  const Batch& first = batches.front();
  const bool is_known = captured.has_value() && captured->batch == first.batch &&
                        captured->sequence == first.sequence && IsSame(captured->pool, before);
  if (is_known && captured->work == nullptr) {
    if (absl::Status status = CaptureStep(forward); !status.ok()) {
      captures_steps = false;
      captured.reset();
      ForgetStep();
      reduction->Begin();
      return PutStep(forward);
    }
  }
  if (is_known) {
    Mark(Phase::kForward);
    captured->work->PutOn(queue);
    return absl::OkStatus();
  }
  captured.reset();
  MUSTER_RETURN_IF_ERROR(PutStep(forward));
  // Of a model that counts otherwise the number of tokens is not known before it has run.
  if (reduction->tokens() != tokens) captures_steps = false;
  const TensorPool::Usage after = pool.usage();
  if (IsSame(before, after)) {
    captured = {.batch = first.batch, .sequence = first.sequence, .pool = after, .work = nullptr};
  }
  return absl::OkStatus();
}

absl::Status Engine::State::CaptureStep(StageForward forward) {
  MUSTER_RETURN_IF_ERROR(queue.device().BeginCapture(queue));
  is_capturing = true;
  const absl::Status status = PutStep(forward);
  is_capturing = false;
  auto work = queue.device().EndCapture(queue);
  MUSTER_RETURN_IF_ERROR(status);
  MUSTER_RETURN_IF_ERROR(work.status());
  if (reduction->tokens() != TargetsThatCount()) {
    return absl::InternalError("the model counts other tokens than those of its targets");
  }
  captured->work = *std::move(work);
  return absl::OkStatus();
}

}  // namespace muster

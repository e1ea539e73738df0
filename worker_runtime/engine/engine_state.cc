#include "worker_runtime/engine/engine_state.h"

#include <utility>

#include "proto/base/status_macros.h"

namespace muster {

Engine::State::State(std::unique_ptr<engine::Rig> the_rig, EngineOptions options)
    : rig(std::move(the_rig)),
      runner(*rig, updater, listeners, options.waits_before_updates),
      registered(*rig, options.registers_buffers),
      captured(*rig, feed, runner, listeners, options.captures_steps),
      checkpoints(*rig, progress, updater, alone, listeners, std::move(options.fence),
                  options.keeps_checkpoints) {
  if (rig->set_up.mesh.tensor_ranks() > 1) {
    rig->store.OnAddUp([this](const Tensor& part) { AddUp(part); });
  }
  if (!plan::UsesMatter(rig->program) && !rig->is_pipeline()) return;
  rig->store.OnUse([this](Parameter& parameter) { Enter(parameter); });
}

Engine::State::~State() {
  rig->store.OnUse(nullptr);
  rig->store.OnAddUp(nullptr);
}

absl::StatusOr<StepResult> Engine::State::RunStep(engine::PassForward forward, bool from_reader) {
  const MonoTime begin = MonoNow();
  MUSTER_RETURN_IF_ERROR(progress.CheckWhole());
  MUSTER_RETURN_IF_ERROR(alone.Leave());
  runner.Begin(begin);
  absl::Status status = captured.Put(forward, from_reader);
  if (status.ok()) status = runner.End();
  if (!status.ok()) {
    const bool has_changed = runner.Fail(status);
    captured.Forget();
    progress.is_torn = progress.is_torn || has_changed;
    return status;
  }
  if (rig->set_up.learns_order) MUSTER_RETURN_IF_ERROR(LearnOrder());
  listeners.Mark(Phase::kIdle);
  return runner.result();
}

absl::Status Engine::State::LearnOrder() {
  MUSTER_ASSIGN_OR_RETURN(const bool differs, AdoptOrder(*rig, runner.observed_gradients()));
  if (!differs) return absl::OkStatus();
  registered.Clear();
  rig->Recompile();
  runner.OnProgram();
  return registered.Register();
}

void Engine::State::Enter(const Parameter& parameter) {
  if (runner.is_in_step()) {
    runner.Enter(parameter);
  } else {
    alone.Enter(parameter.unit());
  }
}

void Engine::State::AddUp(const Tensor& part) {
  if (runner.is_in_step()) {
    runner.AddUp(part);
  } else {
    alone.AddUp(part);
  }
}

}  // namespace muster

// The loop of a step: asks the executor what to start, computes, starts collectives and transfers,
// and waits where nothing can be computed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/action_range.h"
#include "worker_runtime/engine/engine_state.h"

namespace muster {

using plan::Action;
using plan::ActionKind;
using plan::Lane;

namespace {

// A communicator knows how many transfers there were, not which of the pipeline's one is.
absl::Status InWordsOfStages(const Action& action, absl::Status status) {
  if (action.collective != plan::Collective::kTransfer) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (in ",
                                                  engine::StageTransfers::NameOf(action), ")"));
}

}  // namespace

absl::StatusOr<StepResult> Engine::Step(Forward forward) {
  return state_->RunStep(
      [&](Tape& tape, const Action& pass, const Activation&) -> absl::StatusOr<StageOutput> {
        MUSTER_ASSIGN_OR_RETURN(Loss loss, forward(tape, pass.micro_batch));
        return StageOutput{.loss = std::move(loss)};
      });
}

absl::StatusOr<StepResult> Engine::StepStage(StageForward forward) {
  return state_->RunStep([&](Tape& tape, const Action& pass, const Activation& received) {
    return forward(tape, pass.micro_batch, received);
  });
}

absl::StatusOr<StepResult> Engine::State::RunStep(PassForward forward, bool from_reader) {
  const MonoTime begin = MonoNow();
  MUSTER_RETURN_IF_ERROR(LeaveAlone());
  if (!std::exchange(has_begun, true)) MUSTER_RETURN_IF_ERROR(RegisterBuffers());
  result = {};
  result.learning_rate = ScheduledLearningRate();
  decision->PutNumbers(SeedOfBackward(), result.learning_rate);
  in_step = true;
  is_updating = false;
  absl::Status status = PutInForm(forward, from_reader);
  if (status.ok() && !queue.device().host_reads()) status = EndOnDevice();
  in_step = false;
  if (!status.ok()) {
    EndGroups(status);
    // What is under way uses memory of the engine until it has ended.
    AwaitRest().IgnoreError();
    ForgetStep();
    captured.reset();
    forms.Forget();
    is_torn = is_torn || is_updating;
    return status;
  }
  if (set_up.learns_order) MUSTER_RETURN_IF_ERROR(LearnOrder());
  Mark(Phase::kIdle);
  const MonoTime end = MonoNow();
  StepTimes& times = result.times;
  times.total = end - begin;
  times.update = times.total - times.forward - times.backward - times.wait;
  times.communication = CommunicationTime();
  return result;
}

absl::Status Engine::State::PutStep(PassForward forward) {
  use_error = absl::OkStatus();
  observed_gradients.clear();
  arrived.clear();
  Start(core->Begin());
  return CarryOut(forward);
}

void Engine::State::ForgetStep() {
  to_compute = plan::kNone;
  in_flight.Clear();
}

// What the host did not wait for may have failed since, and then the record says nothing.
absl::Status Engine::State::EndOnDevice() {
  MUSTER_RETURN_IF_ERROR(std::exchange(launched, Work()).Wait());
  for (const Travel& travel : arrived) MUSTER_RETURN_IF_ERROR(travel.work.Wait());
  return JudgeStep();
}

// An error that ended one communicator ends the others with the same words: a rank that waits in
// its stage would else hear only that this one has gone. A step that all ranks refuse alike ends
// none.
void Engine::State::EndGroups(const absl::Status& failure) {
  const bool alone_knows = own_groups.empty() && use_error.ok();
  if (alone_knows || absl::IsFailedPrecondition(failure)) return;
  Abort(failure.message());
}

void Engine::State::Abort(absl::string_view reason) {
  for (const auto& group : own_groups) group->Abort(reason);
  world.Abort(reason);
}

absl::Status Engine::State::CarryOut(PassForward forward) {
  while (!core->IsFinished()) {
    if (to_compute == plan::kNone) {
      MUSTER_RETURN_IF_ERROR(Await(core->HoldUp()));
      continue;
    }
    const int action = std::exchange(to_compute, plan::kNone);
    const MonoTime begin = MonoNow();
    MUSTER_RETURN_IF_ERROR(Compute(program.actions[action], forward));
    Tell(TimedAction::Lane::kCompute, action, begin, MonoNow());
    Complete(action);
  }
  return absl::OkStatus();
}

void Engine::State::Tell(TimedAction::Lane lane, int action, MonoTime begin, MonoTime end) const {
  // The step counts as taken once it is decided what becomes of it, before its updates.
  listeners.Tell(lane, result.step != 0 ? result.step : step + 1, begin, end,
                 [&] { return Describe(program.actions[action], program); });
}

absl::Status Engine::State::Compute(const Action& action, PassForward forward) {
  const engine::ActionRange range(ToString(action.kind));
  switch (action.kind) {
    case ActionKind::kForward:
      return RunForward(action, forward);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return RunBackward(action);
    case ActionKind::kNorm:
      Mark(Phase::kUpdate);
      ComputeNorm();
      return absl::OkStatus();
    case ActionKind::kClip:
      // What is on its way might otherwise fail when the update has been sent behind it.
      if (waits_before_update && !is_capturing) {
        for (const Travel& travel : arrived) MUSTER_RETURN_IF_ERROR(travel.work.Wait());
      }
      return DecideUpdate();
    default:
      Update(action);
      return absl::OkStatus();
  }
}

void Engine::State::Start(absl::Span<const int> actions) {
  for (const int action : actions) {
    const Action& a = program.actions[action];
    switch (plan::LaneOf(a.kind)) {
      case Lane::kCompute:
        to_compute = action;
        break;
      case Lane::kMemory:
        reduction->GiveUp(a);
        break;
      default:
        StartTravel(action);
    }
  }
}

void Engine::State::StartTravel(int action) {
  const Action& a = program.actions[action];
  const engine::ActionRange range(ToString(a.kind));
  if (a.kind == ActionKind::kReduce && a.place != plan::kNone) held.ZeroUnwritten(a.bucket);
  Travel travel = {.action = action, .since = MonoNow()};
  if (a.collective == plan::Collective::kTransfer) {
    travel.memory = transfers.MemoryOf(a);
    travel.work = transfers.Start(a, travel.memory);
  } else {
    travel.work = reduction->Start(a);
  }
  travels.push_back(std::move(travel));
}

void Engine::State::Complete(int action) { Start(core->Step(engine::Done{action})); }

absl::Status Engine::State::Await(int action) {
  const auto found = std::find_if(travels.begin(), travels.end(),
                                  [&](const Travel& travel) { return travel.action == action; });
  MUSTER_CHECK(found != travels.end());
  const MonoTime begin = MonoNow();
  {
    const engine::ActionRange range(
        absl::StrCat("wait for ", ToString(program.actions[action].kind)));
    if (absl::Status status = found->work.Await(queue); !status.ok()) {
      return InWordsOfStages(program.actions[action], std::move(status));
    }
  }
  Tell(TimedAction::Lane::kWaiting, action, begin, MonoNow());
  // Time that the update waits for its own collectives is the update's, and a pass's is its own.
  if (result.step == 0 && core->is_between_passes()) result.times.wait += MonoNow() - begin;
  Travel travel = std::move(*found);
  travels.erase(found);
  // What was there at once has no end of its own, nor has what a device's queue still waits for.
  Tell(TimedAction::Lane::kNetwork, action, travel.since,
       std::clamp(travel.work.FinishedAt(), travel.since, MonoNow()));
  const Action& a = program.actions[action];
  if (a.collective == plan::Collective::kTransfer) {
    transfers.Finish(a, travel.memory);
    travel.memory = Tensor();
  } else {
    reduction->Finish(a);
  }
  arrived.push_back(std::move(travel));
  Complete(action);
  return absl::OkStatus();
}

absl::Status Engine::State::AwaitRest() {
  absl::Status first_error = std::exchange(launched, Work()).Wait();
  for (const Travel& travel : travels) first_error.Update(travel.work.Wait());
  travels.clear();
  return first_error;
}

// Collectives of a communicator run one after the other.
absl::Duration Engine::State::CommunicationTime() const {
  absl::Duration busy;
  MonoTime free_since;
  for (const Travel& travel : arrived) {
    if (program.actions[travel.action].kind != ActionKind::kReduce) continue;
    const MonoTime begin = std::max(travel.since, free_since);
    const MonoTime end = std::max(begin, travel.work.FinishedAt());
    busy += end - begin;
    free_since = end;
  }
  return busy;
}

}  // namespace muster

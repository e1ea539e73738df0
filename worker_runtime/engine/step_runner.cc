#include "worker_runtime/engine/step_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/action_range.h"

namespace muster::engine {

using plan::Action;
using plan::Lane;

StepRunner::StepRunner(Rig& rig, Updater& updater, const StepListeners& listeners,
                       bool waits_before_updates)
    : rig_(rig),
      updater_(updater),
      listeners_(listeners),
      waits_before_updates_(waits_before_updates),
      passes_(rig, updater),
      travels_(rig, passes_.transfers()),
      core_(std::in_place, rig.program) {}

void StepRunner::Begin(MonoTime now) {
  began_ = now;
  result_ = {};
  result_.learning_rate = updater_.PutNumbers();
  in_step_ = true;
  updates_left_.reset();
}

absl::Status StepRunner::Put(PassForward forward) {
  use_error_ = absl::OkStatus();
  observed_gradients_.clear();
  travels_.Forget();
  Start(core_->Begin());
  return CarryOut(forward);
}

absl::Status StepRunner::PutIntoCapture(PassForward forward) {
  is_capturing_ = true;
  const absl::Status status = Put(forward);
  is_capturing_ = false;
  return status;
}

void StepRunner::Launch(Work step) {
  updates_left_ = 1;
  travels_.Launch(std::move(step));
}

void StepRunner::Forget() {
  to_compute_ = plan::kNone;
  passes_.Clear();
}

absl::Status StepRunner::End() {
  if (!rig_.host_reads()) MUSTER_RETURN_IF_ERROR(EndOnDevice());
  in_step_ = false;
  StepTimes& times = result_.times;
  times.total = MonoNow() - began_;
  times.update = times.total - times.forward - times.backward - times.wait;
  times.communication = travels_.TimeOfReductions();
  return absl::OkStatus();
}

// What the host did not wait for may have failed since, and then the record says nothing.
absl::Status StepRunner::EndOnDevice() {
  MUSTER_RETURN_IF_ERROR(travels_.AwaitOnHost());
  return JudgeStep();
}

bool StepRunner::Fail(const absl::Status& failure) {
  in_step_ = false;
  // All ranks refuse a step alike.
  if (!absl::IsFailedPrecondition(failure)) rig_.Guard(failure).IgnoreError();
  travels_.AwaitRest().IgnoreError();
  Forget();
  return updates_left_.value_or(0) > 0;
}

absl::Status StepRunner::CarryOut(PassForward forward) {
  while (!core_->IsFinished()) {
    if (to_compute_ == plan::kNone) {
      MUSTER_RETURN_IF_ERROR(Await(core_->HoldUp()));
      continue;
    }
    const int action = std::exchange(to_compute_, plan::kNone);
    const MonoTime begin = MonoNow();
    MUSTER_RETURN_IF_ERROR(Compute(rig_.program.actions[action], forward));
    Tell(TimedAction::Lane::kCompute, action, begin, MonoNow());
    Complete(action);
  }
  return absl::OkStatus();
}

// The step counts as taken once it is decided what becomes of it, before its updates.
void StepRunner::Tell(TimedAction::Lane lane, int action, MonoTime begin, MonoTime end) const {
  listeners_.Tell(lane, /*is_taken=*/result_.step != 0, begin, end,
                  [&] { return Describe(rig_.program.actions[action], rig_.program); });
}

absl::Status StepRunner::Compute(const Action& action, PassForward forward) {
  const ActionRange range(ToString(action.kind()));
  if (const auto* pass = action.If<plan::Pass>()) {
    return pass->of.kind == plan::PassKind::kForward ? Forward(*pass, forward) : Backward(*pass);
  }
  if (action.If<plan::Clip>()) return DecideUpdate();
  if (const auto* update = action.If<plan::Update>()) {
    Update(*update);
  } else {
    listeners_.Mark(Phase::kUpdate);
    updater_.ComputeNorm(action.As<plan::Norm>());
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Forward(const plan::Pass& pass, PassForward forward) {
  listeners_.Mark(Phase::kForward);
  const MonoTime begin = MonoNow();
  MUSTER_RETURN_IF_ERROR(passes_.Forward(pass.of, forward, use_error_));
  result_.times.forward += MonoNow() - begin;
  return absl::OkStatus();
}

absl::Status StepRunner::Backward(const plan::Pass& pass) {
  listeners_.Mark(Phase::kBackward);
  const MonoTime begin = MonoNow();
  const auto watch = [this](Tape& tape) { WatchGradients(tape); };
  MUSTER_RETURN_IF_ERROR(passes_.Backward(pass, watch, use_error_));
  result_.times.backward += MonoNow() - begin;
  if (passes_.IsLast(pass.of)) listeners_.Mark(Phase::kReduce);
  return absl::OkStatus();
}

void StepRunner::WatchGradients(Tape& tape) {
  for (const auto& parameter : rig_.store.parameters()) {
    if (parameter->frozen()) Start(core_->Step(GradientReady{parameter->index()}));
  }
  tape.OnGradientReady([this](Parameter& parameter) {
    // It was used, but its output was not.
    if (!parameter.has_gradient()) parameter.BeginSparseGradient(rig_.queue);
    if (rig_.set_up.learns_order) observed_gradients_.push_back(parameter.index());
    Start(core_->Step(GradientReady{parameter.index()}));
  });
}

absl::Status StepRunner::DecideUpdate() {
  // What is on its way might otherwise fail when the update has been sent behind it.
  if (waits_before_updates_ && !is_capturing_) MUSTER_RETURN_IF_ERROR(travels_.AwaitOnHost());
  updater_.Decide();
  return rig_.host_reads() ? JudgeStep() : absl::OkStatus();
}

absl::Status StepRunner::JudgeStep() {
  MUSTER_ASSIGN_OR_RETURN(const StepRecord record, updater_.Read());
  updates_left_.reset();  // not yet, or all of it is done
  return updater_.Judge(record, result_);
}

void StepRunner::Update(const plan::Update& update) {
  if (result_.skipped) return;
  if (!is_capturing_ && !updates_left_) updates_left_ = NumUpdates();
  updater_.Update(update.bucket);
  if (rig_.host_reads()) --*updates_left_;
}

int StepRunner::NumUpdates() const {
  const std::vector<Action>& actions = rig_.program.actions;
  return static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const Action& action) {
    return action.If<plan::Update>() != nullptr;
  }));
}

void StepRunner::Start(absl::Span<const int> actions) {
  for (const int action : actions) {
    const Action& a = rig_.program.actions[action];
    switch (plan::LaneOf(a.kind())) {
      case Lane::kCompute:
        to_compute_ = action;
        break;
      case Lane::kMemory:
        rig_.reduction->GiveUp(a.As<plan::Reshard>());
        break;
      default:
        travels_.Start(action);
    }
  }
}

absl::Status StepRunner::Await(int action) {
  MUSTER_ASSIGN_OR_RETURN(const Travels::Times times, travels_.Await(action));
  Tell(TimedAction::Lane::kWaiting, action, times.wait_began, times.wait_ended);
  // Time that the update waits for its own collectives is the update's, and a pass's is its own.
  if (result_.step == 0 && core_->is_between_passes()) {
    result_.times.wait += times.wait_ended - times.wait_began;
  }
  Tell(TimedAction::Lane::kNetwork, action, times.since, times.finished);
  Complete(action);
  return absl::OkStatus();
}

// A parameter of another stage is lent, and a frozen one in buckets is whole.
void StepRunner::Enter(const Parameter& parameter) {
  const plan::Program& program = rig_.program;
  const int unit = parameter.unit();
  if (!plan::HoldsUnit(program, unit) || !plan::UsesMatter(program)) return;
  if (!core_->IsOfPass(rig_.set_up.StageOfUnit(unit))) return;
  if (parameter.frozen() && plan::UsesBuckets(program)) return;
  EnterNext(parameter);
}

absl::Status StepRunner::AwaitUse() {
  for (int action = core_->UseHoldUp(); action != plan::kNone; action = core_->UseHoldUp()) {
    if (action == ExecutorCore::kNever) {
      return absl::InternalError(
          "gradients come in another order than when the model's order of use was found out, and "
          "tensor ranks need one that stays the same");
    }
    MUSTER_RETURN_IF_ERROR(Await(action));
  }
  return absl::OkStatus();
}

void StepRunner::AddUp(const Tensor& part) {
  if (!use_error_.ok()) return;
  if (!core_->ExpectsSum(part.num_bytes())) {
    use_error_ = absl::InternalError(absl::StrCat(
        "the model adds up ", part.shape().ToString(),
        " over its tensor ranks at a point where it did not when its order of use was found out; "
        "they need one that stays the same"));
    return;
  }
  rig_.reduction->BringPart(part);
  Start(core_->Step(SumEntered{}));
  use_error_.Update(AwaitUse());
}

void StepRunner::EnterNext(const Parameter& parameter) {
  const int unit = parameter.unit();
  const int use = plan::UseOf(rig_.program, parameter.index(), unit);
  const ExecutorCore::Arrival arrival =
      use_error_.ok() ? core_->WhatIs(use) : ExecutorCore::Arrival::kUnknown;
  if (arrival == ExecutorCore::Arrival::kSame) return;
  if (arrival == ExecutorCore::Arrival::kUnknown) {
    const auto& names = rig_.store.unit_names();
    use_error_.Update(absl::InternalError(absl::StrCat(
        "the model uses unit ",
        unit < static_cast<int>(names.size()) ? names[unit] : absl::StrCat(unit),
        " at a point where it did not when its order of use was found out; sharded plans need one "
        "that stays the same")));
    rig_.held.BindAnything(unit);
    return;
  }
  Start(core_->Step(UnitEntered{use}));
  const MonoTime begin = MonoNow();
  use_error_.Update(AwaitUse());
  if (!use_error_.ok()) return rig_.held.BindAnything(unit);
  result_.times.gather += MonoNow() - begin;
  const int64_t place = core_->use().place;
  if (place != plan::kNone) {
    rig_.held.BindUnreduced(plan::GradientBucketOf(rig_.program, use), place);
  }
}

}  // namespace muster::engine

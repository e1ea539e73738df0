// Forward and backward passes of a program.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

using plan::Action;
using plan::ActionKind;

}  // namespace

absl::Status Engine::State::RunForward(const Action& action, PassForward forward) {
  Mark(Phase::kForward);
  const MonoTime begin = MonoNow();
  engine::PassInFlight& pass = in_flight.At(action.stage, action.micro_batch);
  Tape& tape = in_flight.Begin(pass);
  absl::StatusOr<StageOutput> output = forward(tape, action, pass.received);
  if (output.ok() && !tape.status().ok()) output = tape.status();
  if (!output.ok()) {
    const std::string reason = absl::StrCat("rank ", world.rank(), ": ", output.status().message());
    Abort(reason);
    return output.status();
  }
  MUSTER_RETURN_IF_ERROR(use_error);
  pass.output = *std::move(output);
  if (set_up.is_last(action.stage)) {
    const Loss& loss = pass.output.loss;
    reduction->AddLoss(action.micro_batch,
                       {.loss = loss.sum, .num_tokens = static_cast<double>(loss.num_tokens)},
                       loss.total);
  }
  transfers.Keep(action);
  result.times.forward += MonoNow() - begin;
  return absl::OkStatus();
}

void Engine::State::BindGradients(const Action& action) {
  // What travels with each micro-batch is of it alone.
  const bool begins = program.ordered || action.micro_batch == 0;
  if (!program.streams_gradients) {
    held.BindGradients(action.slot, plan::BlocksOfStage(program, action.stage), !begins);
  }
  for (const int p : set_up.stages[action.stage].borrowed) {
    if (begins) store.parameters()[p]->ForgetGradient();
  }
  transfers.BindTied(action.stage, !begins);
}

void Engine::State::WatchGradients(Tape& tape) {
  for (const auto& parameter : store.parameters()) {
    if (parameter->frozen()) Start(core->Step(engine::GradientReady{parameter->index()}));
  }
  tape.OnGradientReady([this](Parameter& parameter) {
    // It was used, but its output was not.
    if (!parameter.has_gradient()) parameter.BeginSparseGradient(queue);
    if (set_up.learns_order) observed_gradients.push_back(parameter.index());
    Start(core->Step(engine::GradientReady{parameter.index()}));
  });
}

absl::Status Engine::State::RunBackward(const Action& action) {
  Mark(Phase::kBackward);
  const MonoTime begin = MonoNow();
  engine::PassInFlight& pass = in_flight.At(action.stage, action.micro_batch);
  Tape& tape = *pass.tape;
  const bool writes = plan::WritesGradients(action);
  const bool is_last = writes && action.micro_batch + 1 == plan.accumulation;
  if (writes) {
    BindGradients(action);
    transfers.AddTiedGradient(action.stage, pass);
    if (is_last && plan.overlap && action.entries.empty()) WatchGradients(tape);
  }
  Replay(action.kind, pass);
  tape.OnGradientReady(nullptr);
  if (!tape.status().ok()) {
    Abort(absl::StrCat("rank ", world.rank(), ": ", tape.status().message()));
    return tape.status();
  }
  MUSTER_RETURN_IF_ERROR(use_error);
  if (action.kind != ActionKind::kBackwardWeight) {
    if (pass.received.needs_gradient()) pass.input_gradient = tape.TakeGradient(pass.received);
    transfers.Keep(action);
  }
  if (writes) {
    store.ZeroUnwritten(queue);
    if (program.ordered || is_last) transfers.KeepTied(action.stage, action.micro_batch);
    reduction->Merge(action, plan::BlocksOfStage(program, action.stage));
    in_flight.End(pass);
  }
  result.times.backward += MonoNow() - begin;
  if (is_last) Mark(Phase::kReduce);
  return absl::OkStatus();
}

void Engine::State::Replay(ActionKind kind, engine::PassInFlight& pass) {
  Tape& tape = *pass.tape;
  if (kind == ActionKind::kBackwardWeight) return tape.BackwardWeights();
  const bool whole = kind == ActionKind::kBackward;
  if (!pass.gradient.empty()) {
    const Activation& output = pass.output.passed_on;
    Tensor gradient = std::move(pass.gradient);
    return whole ? tape.Backward(output, std::move(gradient))
                 : tape.BackwardInputs(output, std::move(gradient));
  }
  const Activation& loss = pass.output.loss.output;
  // A scale that may change is read in the device's memory.
  if (!scaler.is_on() || queue.device().host_reads()) {
    return whole ? tape.Backward(loss, SeedOfBackward())
                 : tape.BackwardInputs(loss, SeedOfBackward());
  }
  const Tensor scale = pool.Allocate(loss.value.dtype(), loss.value.shape());
  queue.device().operations(DType::kF32).cast(queue, decision->narrow_loss_scale(), scale);
  return whole ? tape.Backward(loss, scale) : tape.BackwardInputs(loss, scale);
}

}  // namespace muster

// Forward and backward passes of a program, and what travels between the stages of a pipeline.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Payload;

}  // namespace

MicroBatchInFlight& Engine::State::InFlight(int64_t micro_batch) {
  std::unique_ptr<MicroBatchInFlight>& place = in_flight[micro_batch];
  if (place == nullptr) place = std::make_unique<MicroBatchInFlight>();
  return *place;
}

// --- forward and backward
// -------------------------------------------------------------------------

absl::Status Engine::State::RunForward(const Action& action, StageForward forward) {
  Mark(Phase::kForward);
  const MonoTime begin = MonoNow();
  MicroBatchInFlight& batch = InFlight(action.micro_batch);
  if (free_tapes.empty()) {
    free_tapes.push_back(std::make_unique<Tape>(pool));
    free_tapes.back()->set_recompute(plan.recompute);
  }
  batch.tape = std::move(free_tapes.back());
  free_tapes.pop_back();
  if (!batch.received.value.empty()) {
    batch.received = batch.tape->Watch(std::move(batch.received.value));
  }
  absl::StatusOr<StageOutput> output = forward(*batch.tape, action.micro_batch, batch.received);
  if (output.ok() && !batch.tape->status().ok()) output = batch.tape->status();
  if (!output.ok()) {
    const std::string reason = absl::StrCat("rank ", world.rank(), ": ", output.status().message());
    Abort(reason);
    return output.status();
  }
  MUSTER_RETURN_IF_ERROR(use_error);
  batch.output = *std::move(output);
  if (stage_number() + 1 == set_up.mesh.stages) {
    const Loss& loss = batch.output.loss;
    reduction->AddLoss(action.micro_batch,
                       {.loss = loss.sum, .num_tokens = static_cast<double>(loss.num_tokens)},
                       loss.total);
  }
  result.times.forward += MonoNow() - begin;
  return absl::OkStatus();
}

absl::Status Engine::State::RunBackward(const Action& action) {
  Mark(Phase::kBackward);
  const MonoTime begin = MonoNow();
  MicroBatchInFlight& batch = InFlight(action.micro_batch);
  Tape& tape = *batch.tape;
  if (program.ordered && !program.streams_gradients) {
    held.BindGradients(action.slot);
  } else if (action.micro_batch == 0 && !program.streams_gradients) {
    store.ForgetGradients();
  }
  // What travels with each micro-batch is of it alone.
  for (const int p : set_up.stages[stage_number()].borrowed) {
    if (program.ordered || action.micro_batch == 0) store.parameters()[p]->ForgetGradient();
  }
  ReceiveTiedGradient(batch);
  const bool is_last = action.micro_batch + 1 == plan.accumulation;
  if (is_last && plan.overlap && action.entries.empty()) {
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
  if (batch.gradient.empty()) {
    BeginBackward(tape, batch.output.loss.output);
  } else {
    tape.Backward(batch.output.passed_on, std::move(batch.gradient));
  }
  tape.OnGradientReady(nullptr);
  if (!tape.status().ok()) {
    Abort(absl::StrCat("rank ", world.rank(), ": ", tape.status().message()));
    return tape.status();
  }
  MUSTER_RETURN_IF_ERROR(use_error);
  if (batch.received.needs_gradient()) batch.input_gradient = tape.TakeGradient(batch.received);
  store.ZeroUnwritten(queue);
  reduction->Merge(action, program.blocks);
  batch.received = {};
  batch.output = {};
  free_tapes.push_back(std::move(batch.tape));
  result.times.backward += MonoNow() - begin;
  if (is_last) Mark(Phase::kReduce);
  return absl::OkStatus();
}

// A scale that may change is read in the device's memory.
void Engine::State::BeginBackward(Tape& tape, const Activation& loss) {
  if (!scaler.is_on() || queue.device().host_reads()) return tape.Backward(loss, SeedOfBackward());
  const Tensor scale = pool.Allocate(loss.value.dtype(), loss.value.shape());
  queue.device().operations(DType::kF32).cast(queue, decision->narrow_loss_scale(), scale);
  tape.Backward(loss, scale);
}

// What the stage behind has found comes first, as it does where one process replays the whole
// model.
void Engine::State::ReceiveTiedGradient(MicroBatchInFlight& batch) {
  if (batch.tied_gradient.empty()) return;
  const Operations& operations = queue.device().operations(batch.tied_gradient.dtype());
  int64_t first = 0;
  for (const plan::StageInfo& info : set_up.stages) {
    for (const int p : info.borrowed) {
      Parameter& parameter = *store.parameters()[p];
      if (!held.Holds(parameter)) continue;
      parameter.Enter();
      const Tensor part = batch.tied_gradient.Slice(first, parameter.shape());
      first += parameter.num_elements();
      const Parameter::GradientTarget to = parameter.BeginGradient();
      if (to.accumulate) {
        operations.add(queue, to.gradient, part, to.gradient);
      } else {
        operations.copy(queue, part, to.gradient);
      }
    }
  }
  batch.tied_gradient = Tensor();
}

// --- transfers
// ------------------------------------------------------------------------------------

// The gradients (or values) of what this stage borrows, side by side; the values of what it lends.
Tensor Engine::State::GatherTied(Payload payload) {
  std::vector<Tensor> parts;
  int64_t count = 0;
  const bool borrows = payload == Payload::kTied;
  for (size_t s = 0; s < set_up.stages.size(); ++s) {
    for (const int p : set_up.stages[s].borrowed) {
      const Parameter& parameter = *store.parameters()[p];
      const bool concerns = borrows ? static_cast<int>(s) == stage_number() : held.Holds(parameter);
      if (!concerns) continue;
      parts.push_back(borrows ? parameter.gradient() : parameter.value());
      count += parameter.num_elements();
    }
  }
  const DType dtype = borrows ? program.types.gradients : program.types.parameters;
  const Tensor all = pool.Allocate(dtype, {count});
  int64_t first = 0;
  for (const Tensor& part : parts) {
    queue.device().operations(part.dtype()).copy(queue, part, all.Slice(first, part.shape()));
    first += part.num_elements();
  }
  return all;
}

Tensor Engine::State::TransferTensor(const Action& action) {
  const bool sends = action.kind == ActionKind::kSend;
  if (!sends) {
    const bool is_boundary =
        action.payload == Payload::kActivation || action.payload == Payload::kGradient;
    if (is_boundary) return pool.Allocate(store.dtype(), set_up.boundary);
    const plan::StateTypes& types = program.types;
    const DType dtype = action.payload == Payload::kTied ? types.gradients : types.parameters;
    return pool.Allocate(dtype, {action.bytes / static_cast<int64_t>(SizeOf(dtype))});
  }
  switch (action.payload) {
    case Payload::kActivation:
      return InFlight(action.micro_batch).output.passed_on.value;
    case Payload::kGradient:
      return std::move(InFlight(action.micro_batch).input_gradient);
    default:
      return GatherTied(action.payload);
  }
}

Work Engine::State::StartTransfer(const Action& action, const Tensor& memory) {
  const Buffer buffer = engine::BufferOfTensor(memory);
  const CallOptions options = {.queue = &queue};
  return action.kind == ActionKind::kSend ? world.Send(buffer, action.peer, options)
                                          : world.Recv(buffer, action.peer, options);
}

void Engine::State::FinishTransfer(const Action& action, const Tensor& memory) {
  if (action.kind == ActionKind::kSend) return;
  switch (action.payload) {
    case Payload::kActivation:
      InFlight(action.micro_batch).received.value = memory;
      break;
    case Payload::kGradient:
      InFlight(action.micro_batch).gradient = memory;
      break;
    case Payload::kTied:
      InFlight(action.micro_batch).tied_gradient = memory;
      break;
    default: {
      int64_t first = 0;
      for (const int p : set_up.stages[stage_number()].borrowed) {
        const Tensor value = store.parameters()[p]->value();
        queue.device()
            .operations(value.dtype())
            .copy(queue, memory.Slice(first, value.shape()), value);
        first += value.num_elements();
      }
    }
  }
}

}  // namespace muster

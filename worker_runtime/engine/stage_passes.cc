#include "worker_runtime/engine/stage_passes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {

using plan::Pass;
using plan::PassKind;
using plan::StagePass;

StagePasses::StagePasses(Rig& rig, const Updater& updater)
    : rig_(rig),
      updater_(updater),
      in_flight_(rig.pool, rig.plan.recompute),
      transfers_(rig.world, rig.store, rig.set_up, rig.program.types, in_flight_, rig.queue,
                 rig.pool) {}

bool StagePasses::IsLast(const StagePass& pass) const {
  return plan::WritesGradients(pass.kind) && pass.micro_batch + 1 == rig_.plan.accumulation;
}

absl::Status StagePasses::Forward(const StagePass& pass, PassForward forward,
                                  const absl::Status& use_error) {
  PassInFlight& here = in_flight_.At(pass.stage, pass.micro_batch);
  Tape& tape = in_flight_.Begin(here);
  absl::StatusOr<StageOutput> output = forward(tape, pass, here.received);
  if (output.ok() && !tape.status().ok()) output = tape.status();
  if (output.ok() && !rig_.set_up.is_last(pass.stage)) {
    const absl::Status fits = CheckPassedOn(output->passed_on, rig_.set_up.received[pass.stage + 1],
                                            rig_.store.dtype(), pass.stage);
    if (!fits.ok()) output = fits;
  }
  if (!output.ok()) return rig_.Guard(output.status());
  MUSTER_RETURN_IF_ERROR(use_error);
  here.output = *std::move(output);
  if (rig_.set_up.is_last(pass.stage)) {
    const Loss& loss = here.output.loss;
    rig_.reduction->AddLoss(pass.micro_batch,
                            {.loss = loss.sum, .num_tokens = static_cast<double>(loss.num_tokens)},
                            loss.total);
  }
  transfers_.Keep(pass);
  return absl::OkStatus();
}

void StagePasses::BindGradients(const Pass& pass) {
  const int stage = pass.of.stage;
  // What travels with each micro-batch is of it alone.
  const bool begins = rig_.program.ordered || pass.of.micro_batch == 0;
  if (!rig_.program.streams_gradients) {
    rig_.held.BindGradients(pass.slot, plan::BlocksOfStage(rig_.program, stage), !begins);
  }
  for (const int p : rig_.set_up.stages[stage].borrowed) {
    if (begins) rig_.store.parameters()[p]->ForgetGradient();
  }
  transfers_.BindTied(stage, !begins);
}

absl::Status StagePasses::Backward(const Pass& pass, absl::FunctionRef<void(Tape&)> watch,
                                   const absl::Status& use_error) {
  const auto [kind, stage, micro_batch] = pass.of;
  PassInFlight& here = in_flight_.At(stage, micro_batch);
  Tape& tape = *here.tape;
  const bool writes = plan::WritesGradients(kind);
  if (writes) {
    BindGradients(pass);
    transfers_.AddTiedGradient(stage, here);
    if (IsLast(pass.of) && rig_.plan.overlap && !plan::UsesMatter(rig_.program)) {
      watch(tape);
    }
  }
  Replay(kind, here);
  tape.OnGradientReady(nullptr);
  if (!tape.status().ok()) return rig_.Guard(tape.status());
  MUSTER_RETURN_IF_ERROR(use_error);
  if (kind != PassKind::kWeightGradient) {
    here.input_gradients = TakeGradients(tape, here.received);
    transfers_.Keep(pass.of);
  }
  if (writes) {
    rig_.store.ZeroUnwritten(rig_.queue);
    if (rig_.program.ordered || IsLast(pass.of)) transfers_.KeepTied(stage, micro_batch);
    rig_.reduction->Merge(pass.merges, plan::BlocksOfStage(rig_.program, stage));
    in_flight_.End(here);
  }
  return absl::OkStatus();
}

void StagePasses::Replay(PassKind kind, PassInFlight& pass) {
  Tape& tape = *pass.tape;
  if (kind == PassKind::kWeightGradient) return tape.BackwardWeights();
  const bool whole = kind == PassKind::kBackward;
  if (!pass.gradients.empty()) {
    std::vector<Tape::Seed> seeds =
        SeedsOf(pass.output.passed_on, std::exchange(pass.gradients, {}));
    return whole ? tape.Backward(absl::MakeSpan(seeds))
                 : tape.BackwardInputs(absl::MakeSpan(seeds));
  }
  const Activation& loss = pass.output.loss.output;
  // A scale that may change is read in the device's memory.
  if (!updater_.scales_loss() || rig_.host_reads()) {
    const double seed = updater_.SeedOfBackward();
    return whole ? tape.Backward(loss, seed) : tape.BackwardInputs(loss, seed);
  }
  const Tensor scale = rig_.pool.Allocate(loss.value.dtype(), loss.value.shape());
  rig_.queue.device().operations(DType::kF32).cast(rig_.queue, updater_.narrow_loss_scale(), scale);
  Tape::Seed seed = {.output = loss, .gradient = scale};
  return whole ? tape.Backward(absl::MakeSpan(&seed, 1))
               : tape.BackwardInputs(absl::MakeSpan(&seed, 1));
}

}  // namespace muster::engine

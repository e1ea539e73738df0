// From reduced gradients to parameters: norm, loss scale, clipping, the update, and what ends a
// step instead.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/gradient_norm.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

static_assert(kernels::kNormBlock == plan::kBlockElements);

// The norm of the sum over all micro-batches, of the blocks whose squares this rank gives.
void Engine::State::ComputeNorm() {
  const Tensor squares = held.squares();
  const Operations& operations = queue.device().operations(store.dtype());
  operations.clear(queue, squares);
  for (const plan::BlockRange& blocks : program.normed) {
    const Tensor part = held.SummedGradients(blocks);
    operations.squares(queue, part, squares.Slice(blocks.begin, {blocks.num_blocks()}));
  }
  if (program.ordered) return;
  queue.device().operations(DType::kF32).tree_sum(queue, squares, held.norm_parts());
}

std::vector<kernels::UpdateSettings> Engine::State::UpdateSettings() const {
  std::vector<kernels::UpdateSettings> settings;
  for (const plan::ParameterUpdate& update : update_groups) {
    settings.push_back(
        {.update = {.learning_rate =
                        update.learning_rate_scale,  // of the step's, which the device has
                    .beta1 = update.beta1,
                    .beta2 = update.beta2,
                    .epsilon = plan.update.epsilon,
                    .weight_decay = update.weight_decay,
                    .decays_gradient = plan.update.kind != UpdateRule::Kind::kAdamW},
         .max_norm = plan.max_gradient_norm});
  }
  return settings;
}

// The learning rate of the step that begins, which is not counted yet.
double Engine::State::ScheduledLearningRate() const {
  const bool counts_all = plan::CountsSkippedSteps(plan.loss_scaling.kind);
  return LearningRate(plan.learning_rate, counts_all ? step : step - skipped_steps);
}

absl::Status Engine::State::DecideUpdate() {
  reduction->PutLoss(decision->loss());
  decision->Decide(UpdateSettings(), held.norm_parts());
  return queue.device().host_reads() ? JudgeStep() : absl::OkStatus();
}

absl::Status Engine::State::JudgeStep() {
  MUSTER_ASSIGN_OR_RETURN(const engine::StepRecord record, decision->Read());
  is_updating = false;  // not yet, or all of it is done
  const bool scaled = scaler.is_on();
  if (!scaled || std::isfinite(record.loss)) {
    MUSTER_RETURN_IF_ERROR(CheckLoss({.loss = record.loss, .num_tokens = record.num_tokens}));
  }
  const double scale = scaler.scale();
  if (record.skipped && !scaled) return NormError("try a lower learning rate");
  MUSTER_RETURN_IF_ERROR(JudgeScale(record.skipped));
  result.step = ++step;
  result.loss = record.loss / record.num_tokens;
  result.num_tokens = static_cast<int64_t>(record.num_tokens);
  result.gradient_norm = record.norm;
  result.loss_scale = scale;
  result.skipped = record.skipped;
  if (result.skipped) ++skipped_steps;
  return absl::OkStatus();
}

absl::Status Engine::State::JudgeScale(bool overflow) {
  const double scale = scaler.scale();
  if (scaler.Judge(overflow) == plan::LossScaler::Verdict::kAtLowest) {
    return NormError(absl::StrCat("the loss scale, ", scale,
                                  ", is at its minimum already and cannot be lowered"));
  }
  const int64_t skipped = scaler.skipped_in_a_row();
  if (skipped < plan::SkippedStepsMax(plan.loss_scaling.kind)) return absl::OkStatus();
  const bool is_static = plan.loss_scaling.kind == LossScaling::Kind::kStatic;
  return NormError(absl::StrCat(
      "this is step ", skipped, " in a row that is skipped, at a loss scale of ", scale, ": give ",
      is_static ? "a lower scale, one that adapts (--loss_scale=torch or deepspeed), or"
                : "a lower learning rate, or",
      " train in bf16 or f32"));
}

absl::Status Engine::State::CheckLoss(engine::LossSum total) {
  if (std::isfinite(total.loss)) {
    if (total.num_tokens > 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step + 1, ": no target counted on any rank, so there is no loss to learn from"));
  }
  // Every rank has the same sum, so all of them come here.
  MUSTER_ASSIGN_OR_RETURN(const bool is_finite, reduction->OwnLossIsFinite());
  const std::vector<uint8_t> own = {is_finite};
  std::vector<uint8_t> all(world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(own), BufferOf(all)).Wait());
  int rank = 0;
  while (rank + 1 < world.size() && all[rank] != 0) ++rank;
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step + 1, ": the loss of rank ", rank,
                   " is not finite; the parameters are as they were; try a lower learning rate"));
}

// Every rank has the same norm, so all of them come here; each sees the part of the gradient that
// it updates.
absl::Status Engine::State::NormError(absl::string_view hint) {
  std::vector<int64_t> first = {static_cast<int64_t>(store.parameters().size())};
  for (const plan::BlockRange& blocks : plan::OwnedBlocks(program)) {
    MUSTER_ASSIGN_OR_RETURN(const Tensor part, engine::OnHost(queue, held.SummedGradients(blocks)));
    held.ForEachPiece(blocks, [&](const engine::RankState::Piece& piece) {
      const Tensor elements = part.Slice(piece.first_in_blocks, {piece.num_elements});
      if (!engine::IsFinite(elements)) {
        first[0] = std::min<int64_t>(first[0], piece.parameter.index());
      }
    });
  }
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(first), {.op = ReduceOp::kMin}).Wait());
  const bool found = first[0] < static_cast<int64_t>(store.parameters().size());
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step + 1, ": ",
                   found ? absl::StrCat("the gradient is not finite, first in ",
                                        store.parameters()[first[0]]->name())
                         : "the gradient is too large for its norm to be a number",
                   "; the parameters are as they were; ", hint));
}

void Engine::State::Update(const plan::Action& action) {
  if (result.skipped) return;
  if (!is_capturing) is_updating = true;
  const Tensor gradients = held.SummedGradients(action.blocks);
  const Tensor masters = held.Masters(action.bucket);
  const Tensor first = held.FirstMoments(action.bucket);
  const Tensor second = held.SecondMoments(action.bucket);
  const bool rounds_at_once =
      plan.update.stochastic_rounding && plan.update.kind != UpdateRule::Kind::kSgd;
  const Tensor rounded = rounds_at_once ? held.Values(action.blocks) : Tensor();
  const Operations& operations = queue.device().operations(masters.dtype());
  std::vector<kernels::AdamWStep> steps;
  for (const kernels::UpdateSettings& settings : UpdateSettings()) steps.push_back(settings.update);
  const std::vector<kernels::UpdateRun> runs = RunsOf(action.blocks);
  const Tensor decisions = decision->OfGroups();
  const Operations::Updates updates = {.runs = runs, .steps = steps, .decisions = decisions};
  if (plan.update.kind == UpdateRule::Kind::kSgd) {
    operations.sgd(queue, {.momentum = plan.update.momentum, .nesterov = plan.update.nesterov},
                   updates, gradients, masters, first);
  } else {
    operations.adamw(queue, updates,
                     {.gradient = gradients,
                      .value = masters,
                      .first_moment = first,
                      .second_moment = second,
                      .rounded = rounded,
                      .draws = DrawsFrom(action.blocks.first_element())});
  }
  if (!rounds_at_once) RoundMasters(action.bucket);
}

// What lies between parameters is zero and stays so, whichever run has it.
std::vector<kernels::UpdateRun> Engine::State::RunsOf(plan::BlockRange blocks) const {
  std::vector<kernels::UpdateRun> runs;
  held.ForEachPiece(blocks, [&](const engine::RankState::Piece& piece) {
    const int group = group_of_parameter[piece.parameter.index()];
    if (!runs.empty()) runs.back().end = piece.first_in_blocks;
    if (runs.empty() || runs.back().group != group) runs.push_back({.group = group});
    runs.back().end = piece.first_in_blocks + piece.num_elements;
  });
  if (!runs.empty()) runs.back().end = blocks.num_elements();
  return runs;
}

void Engine::State::RoundMasters(int bucket) {
  const plan::BlockRange owned = program.buckets[bucket].owned;
  if (!program.types.has_master() || owned.num_blocks() == 0) return;
  const Tensor masters = held.Masters(bucket);
  const Tensor values = held.Values(owned);
  const Operations& operations = queue.device().operations(masters.dtype());
  if (!plan.update.stochastic_rounding) return operations.cast(queue, masters, values);
  // Every group has counted the same updates.
  operations.round_by_draws(queue, decision->OfGroups(), masters, DrawsFrom(owned.first_element()),
                            values);
}

kernels::RoundingDraws Engine::State::DrawsFrom(int64_t first_element) const {
  const PhiloxKey key = RoundingKey();
  return {.key_low = key.low, .key_high = key.high, .first_element = first_element};
}

}  // namespace muster

#include "worker_runtime/engine/updater.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/gradient_norm.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {

static_assert(kernels::kNormBlock == plan::kBlockElements);

namespace {

std::vector<plan::ParameterUpdate> GroupsOf(const std::vector<plan::ParameterUpdate>& updates) {
  std::vector<plan::ParameterUpdate> groups;
  for (const plan::ParameterUpdate& update : updates) {
    if (update.frozen || std::find(groups.begin(), groups.end(), update) != groups.end()) continue;
    groups.push_back(update);
  }
  return groups;
}

std::vector<int> GroupOfEach(const std::vector<plan::ParameterUpdate>& updates,
                             const std::vector<plan::ParameterUpdate>& groups) {
  std::vector<int> group_of;
  for (const plan::ParameterUpdate& update : updates) {
    const auto group = std::find(groups.begin(), groups.end(), update);
    group_of.push_back(static_cast<int>(group - groups.begin()));
  }
  return group_of;
}

}  // namespace

Updater::Updater(Rig& rig, TrainingProgress& progress)
    : rig_(rig),
      progress_(progress),
      groups_(GroupsOf(rig.set_up.updates)),
      group_of_parameter_(GroupOfEach(rig.set_up.updates, groups_)),
      decision_(rig.queue, static_cast<int>(groups_.size())) {}

double Updater::PutNumbers() {
  const double learning_rate = ScheduledLearningRate();
  decision_.PutNumbers(SeedOfBackward(), learning_rate);
  return learning_rate;
}

double Updater::SeedOfBackward() const {
  if (!scales_loss()) return 1;
  return plan::SeedOfBackward(progress_.scaler.scale(), rig_.set_up.declared_tokens());
}

void Updater::ComputeNorm(const plan::Norm& norm) {
  const Tensor squares = rig_.held.squares();
  const Operations& operations = rig_.queue.device().operations(rig_.program.types.gradients);
  operations.clear(rig_.queue, squares);
  for (const plan::BlockRange& blocks : plan::NormedBlocks(rig_.world.rank(), norm, rig_.program)) {
    if (blocks.num_blocks() == 0) continue;
    const Tensor part = rig_.held.SummedGradients(blocks);
    operations.squares(rig_.queue, part, rig_.held.SquaresOf(blocks));
  }
  if (rig_.program.ordered) return;
  rig_.queue.device().operations(DType::kF32).tree_sum(rig_.queue, squares, rig_.held.norm_parts());
}

std::vector<kernels::UpdateSettings> Updater::Settings() const {
  std::vector<kernels::UpdateSettings> settings;
  for (const plan::ParameterUpdate& update : groups_) {
    settings.push_back(
        {.update = {.learning_rate =
                        update.learning_rate_scale,  // of the step's, which the device has
                    .beta1 = update.beta1,
                    .beta2 = update.beta2,
                    .epsilon = rig_.plan.update.epsilon,
                    .weight_decay = update.weight_decay,
                    .decays_gradient = rig_.plan.update.kind != UpdateRule::Kind::kAdamW},
         .max_norm = rig_.plan.max_gradient_norm});
  }
  return settings;
}

double Updater::ScheduledLearningRate() const {
  const bool counts_all = plan::CountsSkippedSteps(rig_.plan.loss_scaling.kind);
  return LearningRate(rig_.plan.learning_rate, counts_all ? progress_.step : progress_.updates());
}

void Updater::Decide() {
  rig_.reduction->PutLoss(decision_.loss());
  decision_.Decide(Settings(), rig_.held.norm_parts());
}

absl::Status Updater::Judge(const StepRecord& record, StepResult& result) {
  const bool scaled = scales_loss();
  if (!scaled || std::isfinite(record.loss)) {
    MUSTER_RETURN_IF_ERROR(CheckLoss({.loss = record.loss, .num_tokens = record.num_tokens}));
  }
  const double scale = progress_.scaler.scale();
  if (record.skipped && !scaled) return NormError("try a lower learning rate");
  MUSTER_RETURN_IF_ERROR(JudgeScale(record.skipped));
  result.step = ++progress_.step;
  result.loss = record.loss / record.num_tokens;
  result.num_tokens = static_cast<int64_t>(record.num_tokens);
  result.gradient_norm = record.norm;
  result.loss_scale = scale;
  result.skipped = record.skipped;
  if (result.skipped) ++progress_.skipped_steps;
  return absl::OkStatus();
}

absl::Status Updater::JudgeScale(bool overflow) {
  const double scale = progress_.scaler.scale();
  if (progress_.scaler.Judge(overflow) == plan::LossScaler::Verdict::kAtLowest) {
    return NormError(absl::StrCat("the loss scale, ", scale,
                                  ", is at its minimum already and cannot be lowered"));
  }
  const int64_t skipped = progress_.scaler.skipped_in_a_row();
  if (skipped < plan::SkippedStepsMax(rig_.plan.loss_scaling.kind)) return absl::OkStatus();
  const bool is_static = rig_.plan.loss_scaling.kind == LossScaling::Kind::kStatic;
  return NormError(absl::StrCat(
      skipped, " consecutive steps were skipped at a loss scale of ", scale, ": give ",
      is_static ? "a lower scale, one that adapts (--loss_scale=torch or deepspeed), or"
                : "a lower learning rate, or",
      " train in bf16 or f32"));
}

absl::Status Updater::CheckLoss(LossSum total) {
  if (std::isfinite(total.loss)) {
    if (total.num_tokens > 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("step ", progress_.step + 1,
                     ": no target counted on any rank, so there is no loss to learn from"));
  }
  // Every rank has the same sum, so all of them come here.
  MUSTER_ASSIGN_OR_RETURN(const bool is_finite, rig_.reduction->OwnLossIsFinite());
  const std::vector<uint8_t> own = {is_finite};
  std::vector<uint8_t> all(rig_.world.size());
  MUSTER_RETURN_IF_ERROR(rig_.world.AllGather(ConstBufferOf(own), BufferOf(all)).Wait());
  int rank = 0;
  while (rank + 1 < rig_.world.size() && all[rank] != 0) ++rank;
  return absl::FailedPreconditionError(
      absl::StrCat("step ", progress_.step + 1, ": the loss of rank ", rank,
                   " is not finite; the parameters are as they were; try a lower learning rate"));
}

// Every rank has the same norm, so all of them come here; each sees the part of the gradient that
// it updates.
absl::Status Updater::NormError(absl::string_view hint) {
  std::vector<int64_t> first = {static_cast<int64_t>(rig_.store.parameters().size())};
  for (const plan::BlockRange& blocks : plan::OwnedBlocks(rig_.program)) {
    MUSTER_ASSIGN_OR_RETURN(const Tensor part,
                            OnHost(rig_.queue, rig_.held.SummedGradients(blocks)));
    rig_.held.ForEachPiece(blocks, [&](const RankState::Piece& piece) {
      const Tensor elements = part.Slice(piece.first_in_blocks, {piece.num_elements});
      if (!IsFinite(elements)) {
        first[0] = std::min<int64_t>(first[0], piece.parameter.index());
      }
    });
  }
  MUSTER_RETURN_IF_ERROR(rig_.world.AllReduce(BufferOf(first), {.op = ReduceOp::kMin}).Wait());
  const bool found = first[0] < static_cast<int64_t>(rig_.store.parameters().size());
  return absl::FailedPreconditionError(
      absl::StrCat("step ", progress_.step + 1, ": ",
                   found ? absl::StrCat("the gradient is not finite, first in ",
                                        rig_.store.parameters()[first[0]]->name())
                         : "the gradient is too large for its norm to be a number",
                   "; the parameters are as they were; ", hint));
}

void Updater::Update(int bucket) {
  const plan::BlockRange owned = rig_.program.buckets[bucket].owned;
  const Tensor gradients = rig_.held.SummedGradients(owned);
  const Tensor masters = rig_.held.Masters(bucket);
  const Tensor first = rig_.held.FirstMoments(bucket);
  const Tensor second = rig_.held.SecondMoments(bucket);
  const bool rounds_at_once =
      rig_.plan.update.stochastic_rounding && rig_.plan.update.kind != UpdateRule::Kind::kSgd;
  const Tensor rounded = rounds_at_once ? rig_.held.Values(owned) : Tensor();
  const Operations& operations = rig_.queue.device().operations(masters.dtype());
  std::vector<kernels::AdamWStep> steps;
  for (const kernels::UpdateSettings& settings : Settings()) steps.push_back(settings.update);
  const std::vector<kernels::UpdateRun> runs = RunsOf(owned);
  const Tensor decisions = decision_.OfGroups();
  const Operations::Updates updates = {.runs = runs, .steps = steps, .decisions = decisions};
  if (rig_.plan.update.kind == UpdateRule::Kind::kSgd) {
    operations.sgd(rig_.queue,
                   {.momentum = rig_.plan.update.momentum, .nesterov = rig_.plan.update.nesterov},
                   updates, gradients, masters, first);
  } else {
    operations.adamw(rig_.queue, updates,
                     {.gradient = gradients,
                      .value = masters,
                      .first_moment = first,
                      .second_moment = second,
                      .rounded = rounded,
                      .draws = DrawsFrom(owned.first_element())});
  }
  if (!rounds_at_once) RoundMasters(bucket);
}

// What lies between parameters is zero and stays so, whichever run has it.
std::vector<kernels::UpdateRun> Updater::RunsOf(plan::BlockRange blocks) const {
  std::vector<kernels::UpdateRun> runs;
  rig_.held.ForEachPiece(blocks, [&](const RankState::Piece& piece) {
    const int group = group_of_parameter_[piece.parameter.index()];
    if (!runs.empty()) runs.back().end = piece.first_in_blocks;
    if (runs.empty() || runs.back().group != group) runs.push_back({.group = group});
    runs.back().end = piece.first_in_blocks + piece.num_elements;
  });
  if (!runs.empty()) runs.back().end = blocks.num_elements();
  return runs;
}

void Updater::RoundMasters(int bucket) {
  const plan::BlockRange owned = rig_.program.buckets[bucket].owned;
  if (!rig_.program.types.has_master() || owned.num_blocks() == 0) return;
  const Tensor masters = rig_.held.Masters(bucket);
  const Tensor values = rig_.held.Values(owned);
  const Operations& operations = rig_.queue.device().operations(masters.dtype());
  if (!rig_.plan.update.stochastic_rounding) return operations.cast(rig_.queue, masters, values);
  // Every group has counted the same updates.
  operations.round_by_draws(rig_.queue, decision_.OfGroups(), masters,
                            DrawsFrom(owned.first_element()), values);
}

kernels::RoundingDraws Updater::DrawsFrom(int64_t first_element) const {
  const PhiloxKey key = RoundingKey();
  return {.key_low = key.low, .key_high = key.high, .first_element = first_element};
}

std::optional<ValueRounding> Updater::RoundingAfter(int64_t updates) const {
  if (!rig_.plan.update.stochastic_rounding) return std::nullopt;
  return ValueRounding{RoundingKey(), updates};
}

void Updater::GoOnAfter(int64_t updates) {
  decision_.Begin(updates);
  for (size_t b = 0; b < plan::LearnedBuckets(rig_.program).size(); ++b) {
    RoundMasters(static_cast<int>(b));
  }
}

}  // namespace muster::engine

// Steps on the batches of a reader, and passes without an update.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/kernels/cross_entropy.h"

namespace muster {
namespace {

constexpr int64_t kNotRead = -1;  // the step of a batch

absl::Status Differs(absl::string_view what, int64_t reader, int64_t engine) {
  return absl::InvalidArgumentError(absl::StrCat("the reader's ", what, " is ", reader,
                                                 " and the engine's ", engine,
                                                 "; make it with Engine::Read, after Load"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchReader>> Engine::Read(const TokenSource& source,
                                                          const BatchSize& size) const {
  return BatchReader::Create(source, {.seed = state_->plan.seed,
                                      .rank = state_->replica(),
                                      .size = state_->set_up.mesh.replicas,
                                      .accumulation = state_->plan.accumulation,
                                      .batch = size.batch,
                                      .sequence = size.sequence,
                                      .first_step = state_->step});
}

absl::StatusOr<const Batch*> Engine::State::NextBatch(BatchReader& reader) const {
  const BatchOptions& options = reader.options();
  if (options.accumulation != plan.accumulation) {
    return Differs("accumulation", options.accumulation, plan.accumulation);
  }
  if (options.size != set_up.mesh.replicas) {
    return Differs("number of ranks", options.size, set_up.mesh.replicas);
  }
  if (options.rank != replica()) return Differs("rank", options.rank, replica());
  MUSTER_ASSIGN_OR_RETURN(const Batch* batch, reader.Next());
  if (batch->step != step) return Differs("step", batch->step, step);
  return batch;
}

absl::StatusOr<StepResult> Engine::Step(BatchReader& reader, BatchLoss loss) {
  return Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
    MUSTER_ASSIGN_OR_RETURN(const Batch* batch, state_->NextBatch(reader));
    return loss(tape, *batch);
  });
}

absl::StatusOr<StepResult> Engine::Step(BatchReader& reader) {
  State& state = *state_;
  if (state.set_up.model == nullptr) {
    return absl::FailedPreconditionError(
        "this engine was given no model in units: give Step what computes the loss of a batch");
  }
  state.batches.resize(state.plan.accumulation);
  for (Batch& batch : state.batches) batch.step = kNotRead;
  if (!state.queue.device().host_reads()) {
    if (absl::Status taken = state.TakeBatches(reader); !taken.ok()) {
      state.Abort(absl::StrCat("rank ", state.world.rank(), ": ", taken.message()));
      return taken;
    }
  }
  return state.RunStep(
      [&](Tape& tape, const plan::Action& pass,
          const Activation& received) -> absl::StatusOr<StageOutput> {
        MUSTER_ASSIGN_OR_RETURN(const Batch* own, state.BatchOf(reader, tape, pass.micro_batch));
        return state.set_up.model(tape, state.set_up.units[pass.stage],
                                  {.tokens = own->tokens(), .targets = own->targets}, received);
      },
      /*from_reader=*/true);
}

// Their places are free: the host has waited for the end of the step that read them last, or that
// has failed and nobody wants what it still computes from whichever ids.
absl::Status Engine::State::TakeBatches(BatchReader& reader) {
  const Device& device = queue.device();
  batch_places.resize(batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    MUSTER_ASSIGN_OR_RETURN(const Batch* next, NextBatch(reader));
    const Batch& own = batches[i] = *next;
    BatchPlace& place = batch_places[i];
    const auto bring = [&](const std::vector<int32_t>& ids, Tensor& to) {
      const auto count = static_cast<int64_t>(ids.size());
      if (to.empty() || to.num_elements() != count) to = batch_pool.Allocate(DType::kI32, {count});
      device.Upload(copies, ids.data(), to.raw_data(), to.num_bytes());
    };
    bring(own.inputs, place.inputs);
    bring(own.targets, place.targets);
    if (place.is_there == nullptr) place.is_there = device.MakeEvent();
    place.is_there->Record(copies);
  }
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> Engine::State::BatchOf(BatchReader& reader, Tape& tape,
                                                    int64_t index) {
  Batch& own = batches[index];
  if (queue.device().host_reads()) {
    // The first of a rank's stages that comes to it reads it, with those before it.
    for (Batch& batch : batches) {
      if (own.step != kNotRead) break;
      if (batch.step != kNotRead) continue;
      MUSTER_ASSIGN_OR_RETURN(const Batch* next, NextBatch(reader));
      batch = *next;
    }
    return &own;
  }
  const BatchPlace& place = batch_places[index];
  if (!is_capturing) place.is_there->HoldUp(queue);
  tape.AreBrought({{own.inputs, place.inputs}, {own.targets, place.targets}});
  return &own;
}

// None where another stage takes the loss.
std::vector<double> Engine::State::TargetsThatCount() const {
  if (set_up.PlaceOf(set_up.num_stages() - 1) != place()) {
    return std::vector<double>(batches.size());
  }
  std::vector<double> counts;
  for (const Batch& batch : batches) {
    const auto ignored =
        std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoredTarget);
    counts.push_back(static_cast<double>(batch.targets.size()) - static_cast<double>(ignored));
  }
  return counts;
}

absl::StatusOr<Engine::Evaluation> Engine::Evaluate(int64_t num_batches, Forward forward) {
  State& state = *state_;
  std::vector<double> sums = {0, 0};
  Tape tape(state.pool, Tape::Mode::kInference);
  for (int64_t i = 0; i < num_batches; ++i) {
    absl::StatusOr<Loss> loss = forward(tape, i);
    if (loss.ok() && !tape.status().ok()) loss = tape.status();
    if (!loss.ok()) {
      state.world.Abort(absl::StrCat("rank ", state.world.rank(), ": ", loss.status().message()));
      return loss.status();
    }
    double sum = loss->sum;
    if (!loss->total.empty()) {
      MUSTER_RETURN_IF_ERROR(
          state.queue.device().Download(state.queue, loss->total.raw_data(), &sum, sizeof(sum)));
    }
    sums[0] += sum;
    sums[1] += static_cast<double>(loss->num_tokens);
  }
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  MUSTER_RETURN_IF_ERROR(state.world.AllReduce(BufferOf(sums)).Wait());
  if (sums[1] == 0) {
    return absl::FailedPreconditionError("no target counted on any rank, so there is no loss");
  }
  return Evaluation{.loss = sums[0] / sums[1], .num_tokens = static_cast<int64_t>(sums[1])};
}

}  // namespace muster

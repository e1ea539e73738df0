// Steps on the batches of a reader, and passes without an update.
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"

namespace muster {
namespace {

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
  return StepStage(
      [&](Tape& tape, int64_t index, const Activation& received) -> absl::StatusOr<StageOutput> {
        MUSTER_ASSIGN_OR_RETURN(const Batch* batch, state.NextBatch(reader));
        const Batch& own = state.batches[index] = *batch;
        return state.set_up.model(tape, state.set_up.units,
                                  {.tokens = own.tokens(), .targets = own.targets}, received);
      });
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

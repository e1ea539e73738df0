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
                                      .rank = state_->world.rank(),
                                      .size = state_->world.size(),
                                      .accumulation = state_->plan.accumulation,
                                      .batch = size.batch,
                                      .sequence = size.sequence,
                                      .first_step = state_->step});
}

absl::StatusOr<StepResult> Engine::Step(BatchReader& reader, BatchLoss loss) {
  const BatchOptions& options = reader.options();
  return Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
    const State& state = *state_;
    if (options.accumulation != state.plan.accumulation) {
      return Differs("accumulation", options.accumulation, state.plan.accumulation);
    }
    if (options.size != state.world.size()) {
      return Differs("number of ranks", options.size, state.world.size());
    }
    if (options.rank != state.world.rank()) {
      return Differs("rank", options.rank, state.world.rank());
    }
    MUSTER_ASSIGN_OR_RETURN(const Batch* batch, reader.Next());
    if (batch->step != state.step) return Differs("step", batch->step, state.step);
    return loss(tape, *batch);
  });
}

absl::StatusOr<Engine::Evaluation> Engine::Evaluate(int64_t num_batches, Forward forward) {
  State& state = *state_;
  if (state.is_pipeline()) {
    return absl::UnimplementedError("this version evaluates models that are not cut into stages");
  }
  std::vector<double> sums = {0, 0};
  Tape tape(state.pool, Tape::Mode::kInference);
  for (int64_t i = 0; i < num_batches; ++i) {
    absl::StatusOr<Loss> loss = forward(tape, i);
    if (loss.ok() && !tape.status().ok()) loss = tape.status();
    if (!loss.ok()) {
      state.world.Abort(absl::StrCat("rank ", state.world.rank(), ": ", loss.status().message()));
      return loss.status();
    }
    sums[0] += loss->sum;
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

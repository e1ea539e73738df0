// Steps on the batches of a reader.
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

}  // namespace muster

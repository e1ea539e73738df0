#include "worker_runtime/plan/held_memory.h"

#include <algorithm>

namespace muster::plan {

void HoldMemory(const ProgramInput& input, const StageInfo& stage, Program& program) {
  const StateTypes& types = input.types;
  int64_t borrowed = 0;
  for (const int p : stage.borrowed) borrowed += input.parameters[p].num_elements();
  int64_t frozen = 0;
  for (const ParameterInfo& p : input.parameters) {
    if (p.frozen) frozen += PlacedElements(p.num_elements());
  }
  const int64_t whole = stage.blocks.num_elements();
  int64_t owned = 0;
  int64_t values = whole;
  int64_t secondary = 0;
  for (size_t b = 0; b < program.owned.size(); ++b) {
    owned += program.owned[b].num_elements();
    if (!program.gathered[b]) continue;
    const BlockRange blocks = program.buckets[b].blocks;
    values -= blocks.num_elements() - program.owned[b].num_elements();
    if (program.secondary.size == 1) continue;
    secondary += ShardOf(blocks, program.secondary.rank, program.secondary.size).num_elements();
  }
  // Any of them may be gathered between steps, by itself.
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.gathered[b]) continue;
    program.gathered_blocks = std::max(
        program.gathered_blocks, program.shards.PaddedOf(program.buckets[b].blocks.num_blocks()));
  }
  const int64_t gradients = program.streams_gradients ? owned : whole;
  ArenaBytes& held = program.held;
  At(held, Arena::kParameters) = (values + borrowed + frozen) * BytesOf(types.parameters);
  At(held, Arena::kGathered) =
      (program.gathered_blocks * kBlockElements + secondary) * BytesOf(types.parameters);
  At(held, Arena::kGradients) = (gradients + borrowed) * BytesOf(types.gradients);
  At(held, Arena::kUnreduced) =
      program.unreduced_blocks * kBlockElements * BytesOf(types.gradients);
  At(held, Arena::kPartialSums) =
      program.streams_gradients ? 0 : (program.num_slots - 1) * whole * BytesOf(types.gradients);
  At(held, Arena::kOptimizer) = owned * (NumMoments(input.plan.update) * BytesOf(types.moments) +
                                         (types.has_master() ? BytesOf(types.master) : 0));
  const int64_t padding = PadsInUnreduced(program) ? 0 : program.padding_bytes;
  At(held, Arena::kBuffers) = padding + (program.num_blocks + 1) * kPartialBytes;
}

}  // namespace muster::plan

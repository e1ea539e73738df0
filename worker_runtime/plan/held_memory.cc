#include "worker_runtime/plan/held_memory.h"

#include <algorithm>

namespace muster::plan {

std::vector<int> BorrowedBy(const Program& program, absl::Span<const StageInfo> stages,
                            const BlockLayout& layout) {
  std::vector<int> borrowed;
  for (const StageBlocks& own : program.stages) {
    for (const int p : stages[own.stage].borrowed) {
      const bool is_known = std::find(borrowed.begin(), borrowed.end(), p) != borrowed.end();
      const bool is_own = HoldsBlock(program, layout.OffsetOf(p) / kBlockElements);
      if (!is_known && !is_own) borrowed.push_back(p);
    }
  }
  return borrowed;
}

std::vector<int> TiedWithin(const Program& program, absl::Span<const StageInfo> stages,
                            absl::Span<const ParameterInfo> parameters, const BlockLayout& layout) {
  std::vector<int> tied;
  for (const StageBlocks& own : program.stages) {
    for (const int p : stages[own.stage].borrowed) {
      const bool is_own = HoldsBlock(program, layout.OffsetOf(p) / kBlockElements);
      if (is_own && !parameters[p].frozen) tied.push_back(p);
    }
  }
  return tied;
}

void HoldMemory(const ProgramInput& input, const BlockLayout& layout, Program& program) {
  const StateTypes& types = input.types;
  int64_t parameters = 0;  // bytes
  int64_t borrowed_learned = 0;
  for (const int p : BorrowedBy(program, input.stages, layout)) {
    const ParameterInfo& info = input.parameters[p];
    parameters += info.num_elements() * BytesOf(types.OfParameters(info.frozen));
    borrowed_learned += input.parameters[p].num_learned();
  }
  for (const int p : TiedWithin(program, input.stages, input.parameters, layout)) {
    borrowed_learned += input.parameters[p].num_learned();
  }
  int64_t whole = 0;
  for (const StageBlocks& own : program.stages) whole += own.blocks.num_elements();
  int64_t owned = 0;
  int64_t secondary = 0;  // bytes
  for (const Bucket& bucket : program.buckets) {
    const BlockRange blocks = bucket.blocks;
    const int64_t each = BytesOf(types.OfParameters(bucket.frozen));
    if (!bucket.frozen) owned += bucket.owned.num_elements();
    parameters += (bucket.gathered ? bucket.owned : blocks).num_elements() * each;
    if (!bucket.gathered) continue;
    // Any of them may be gathered between steps, by itself.
    int64_t& arena = program.gathered_blocks[bucket.frozen];
    arena = std::max(arena, program.shards.PaddedOf(blocks.num_blocks()));
    if (program.secondary.size == 1) continue;
    secondary +=
        ShardOf(blocks, program.secondary.rank, program.secondary.size).num_elements() * each;
  }
  int64_t gathered = secondary;
  for (const bool frozen : {false, true}) {
    gathered +=
        program.gathered_blocks[frozen] * kBlockElements * BytesOf(types.OfParameters(frozen));
  }
  const int64_t gradients = program.streams_gradients ? owned : whole;
  ArenaBytes& held = program.held;
  At(held, Arena::kParameters) = parameters;
  At(held, Arena::kGathered) = gathered;
  At(held, Arena::kGradients) = (gradients + borrowed_learned) * BytesOf(types.gradients);
  At(held, Arena::kUnreduced) =
      program.unreduced_blocks * kBlockElements * BytesOf(types.gradients);
  At(held, Arena::kPartialSums) =
      program.streams_gradients ? 0
                                : (program.sums.num_slots - 1) * whole * BytesOf(types.gradients);
  At(held, Arena::kOptimizer) = owned * (NumMoments(input.plan.update) * BytesOf(types.moments) +
                                         (types.has_master() ? BytesOf(types.master) : 0));
  const int64_t padding = PadsInUnreduced(program) ? 0 : program.padding_bytes;
  At(held, Arena::kBuffers) = padding + (program.num_blocks + 1) * kPartialBytes;
}

}  // namespace muster::plan

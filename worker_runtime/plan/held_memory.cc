#include "worker_runtime/plan/held_memory.h"

#include <algorithm>

namespace muster::plan {
namespace {

// Any gathered bucket may be gathered between steps, by itself.
void MakeRoomForGathered(Program& program) {
  for (const Bucket& bucket : program.buckets) {
    if (!bucket.gathered) continue;
    int64_t& arena = program.gathered_blocks[bucket.frozen];
    arena = std::max(arena, bucket.padded_blocks());
  }
}

// The arenas, and the rank's secondary shards of the parameters that are gathered.
int64_t GatheredBytes(const Program& program, const StateTypes& types) {
  int64_t bytes = 0;
  for (const bool frozen : {false, true}) {
    bytes += program.gathered_blocks[frozen] * kBlockElements * BytesOf(types.OfParameters(frozen));
  }
  for (const Bucket& bucket : program.buckets) {
    const Shards& near = bucket.groups.near;
    if (!bucket.gathered || near.size == 1) continue;
    bytes += ShardOf(bucket.blocks, near.rank, near.size).num_elements() *
             BytesOf(types.OfParameters(bucket.frozen));
  }
  return bytes;
}

}  // namespace

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
  for (const Bucket& bucket : program.buckets) {
    if (!bucket.frozen) owned += bucket.owned.num_elements();
    parameters += (bucket.gathered ? bucket.owned : bucket.blocks).num_elements() *
                  BytesOf(types.OfParameters(bucket.frozen));
  }
  MakeRoomForGathered(program);
  const int64_t gradients = program.streams_gradients ? owned : whole;
  ArenaBytes& held = program.held;
  At(held, Arena::kParameters) = parameters;
  At(held, Arena::kGathered) = GatheredBytes(program, types);
  At(held, Arena::kGradients) = (gradients + borrowed_learned) * BytesOf(types.gradients);
  At(held, Arena::kUnreduced) =
      program.unreduced_blocks * kBlockElements * BytesOf(types.gradients);
  At(held, Arena::kPartialSums) =
      program.streams_gradients ? 0
                                : (program.sums.num_slots - 1) * whole * BytesOf(types.gradients);
  At(held, Arena::kOptimizer) = owned * (NumMoments(input.plan.update) * BytesOf(types.moments) +
                                         (types.has_master() ? BytesOf(types.master) : 0));
  const int64_t padding = PadsInUnreduced(program) ? 0 : program.padding_bytes;
  At(held, Arena::kBuffers) = padding + (NumSquares(program) + 1) * kPartialBytes;
}

}  // namespace muster::plan

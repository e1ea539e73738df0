// What a rank holds at all times, from what its program says.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/compile_program.h"

namespace muster::plan {

// Parameters of other ranks' stages that this rank's stages use too, each once.
std::vector<int> BorrowedBy(const Program& program, absl::Span<const StageInfo> stages,
                            const BlockLayout& layout);

// Parameters of its own that learn and that another of its stages uses too: their gradients there
// have memory of their own.
std::vector<int> TiedWithin(const Program& program, absl::Span<const StageInfo> stages,
                            absl::Span<const ParameterInfo> parameters, const BlockLayout& layout);

// Fills program.held from its arenas, buckets and types, and makes the arenas of gathered
// parameters large enough for any unit, since between steps each is gathered alone.
void HoldMemory(const ProgramInput& input, const BlockLayout& layout, Program& program);

// A GPU gets the batches of a step before it begins: ids and targets of so many tokens.
constexpr int64_t BytesOfBatches(int64_t num_tokens) {
  return static_cast<int64_t>(2 * sizeof(int32_t)) * num_tokens;
}

}  // namespace muster::plan

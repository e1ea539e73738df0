// What a rank holds at all times, from what its program says.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "worker_runtime/plan/compile_program.h"

namespace muster::plan {

// Fills program.held from its arenas, buckets and types, and makes the arena of gathered parameters
// large enough for any unit, since between steps each is gathered alone.
void HoldMemory(const ProgramInput& input, const StageInfo& stage, Program& program);

// A GPU gets the batches of a step before it begins: ids and targets of so many tokens.
constexpr int64_t BytesOfBatches(int64_t num_tokens) {
  return static_cast<int64_t>(2 * sizeof(int32_t)) * num_tokens;
}

}  // namespace muster::plan

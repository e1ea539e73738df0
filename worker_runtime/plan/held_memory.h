// What a rank holds at all times, from what its program says.
//
// Threads: pure.
#pragma once

#include "worker_runtime/plan/compile_program.h"

namespace muster::plan {

// Fills program.held from its arenas, buckets and types, and makes the arena of gathered parameters large enough for any unit, since
// between steps each is gathered alone.
void HoldMemory(const ProgramInput& input, const StageInfo& stage, Program& program);

}  // namespace muster::plan

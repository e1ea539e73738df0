// What the communicators of a rank take to exchange what its program says, of the gloo back end.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/dtype.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/staging.h"

namespace muster::plan {

// A collective as a communicator is asked for it.
struct ExchangeCall {
  Collective collective = Collective::kAllReduce;
  DType dtype = DType::kF32;
  int64_t bytes = 0;  // of what is exchanged, whole
  bool ordered = false;
  int64_t leaves_per_rank = 1;  // of ordered sums
  friend bool operator==(const ExchangeCall&, const ExchangeCall&) = default;
};

// A rank's place in a group.
struct GroupPlace {
  int rank = 0;
  int size = 1;
  bool left_shares_memory = true;  // with the rank below it, the last one's being the first
};

// The blocks that one call takes, and gives back.
void Stage(const ExchangeCall& call, const GroupPlace& place, StagingBlocks& blocks);

// The ranks of a group that send to `place` in a call.
std::vector<int> SendersOf(const ExchangeCall& call, const GroupPlace& place);

struct ExchangeMemory {
  int64_t staging = 0;
  // Memory that ranks of one machine map, in which this rank is sent things: it is taken as it is
  // used, and all of it in the end.
  int64_t rings = 0;

  int64_t total() const { return staging + rings; }
};

// Over the steps of `program`. Ranks [i * ranks_of_node, (i + 1) * ranks_of_node) share a machine
// and its memory; the others are connected.
ExchangeMemory ExchangeMemoryOf(const Program& program, int ranks_of_node);

}  // namespace muster::plan

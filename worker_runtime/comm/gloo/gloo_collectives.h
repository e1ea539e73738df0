// The algorithms of collectives over point-to-point messages. Which one runs depends on the
// operation alone, so that every rank picks the same.
//
// Every receive is posted before its data can arrive, as far as memory allows: Gloo sends at once
// what is awaited.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/gloo/exchange.h"

namespace muster::comm {

// One rank's view of one collective.
struct CollectiveContext {
  Exchange& exchange;
  int rank = 0;
  int size = 1;

  int right() const { return (rank + 1) % size; }
  int left() const { return (rank + size - 1) % size; }
};

// The cut of a flat range of elements into one block per rank; blocks differ by at most one
// element.
struct Blocks {
  int64_t count = 0;
  int size = 1;

  int64_t begin(int block) const { return count / size * block + count % size * block / size; }
  int64_t num_elements(int block) const { return begin(block + 1) - begin(block); }
};

// Parts of messages, so that sending, receiving and adding overlap.
inline constexpr int64_t kChunkBytes = int64_t{1} << 20;

// The ranks with which `rank` exchanges messages in `operation`, its neighbours on the ring
// included. Threads: pure.
std::vector<int> PeersOf(const Operation& operation, int rank, int size);

// Runs `call`'s operation. Does not return before its messages have been sent, unless it fails.
//
// Errors: kAborted: interrupted; kUnavailable: exchange.lost_peer() is gone.
absl::Status RunCollective(const CollectiveContext& context, const Call& call);

// ring_collectives.cc. Cost: n-1 steps, (n-1)/n of the whole sent.
//
// Leaves block `rank` of the reduction in `output`, which may be that block of `input`. For types
// that accumulate in themselves; a block's sum starts at the rank after its owner.
absl::Status RingReduceScatter(const CollectiveContext& context, const Operation& operation,
                               const Blocks& blocks, const void* input, void* output);
// Every rank's block `rank` of `buffer` reaches all others.
absl::Status RingAllGather(const CollectiveContext& context, DType dtype, const Blocks& blocks,
                           void* buffer);

// direct_collectives.cc. Each rank sends each other one message.
//
// DirectReduceScatter does what RingReduceScatter does, for any type, of several inputs in ordered
// mode; sums in the accumulation type in the order of ranks (or by the tree) and rounds once.
absl::Status DirectReduceScatter(const CollectiveContext& context, const Call& call,
                                 const Blocks& blocks, void* output);
absl::Status DirectAllToAll(const CollectiveContext& context, const Call& call);

// tree_collectives.cc. Cost: about log2(n) steps.
//
// All-reduce by recursive doubling; ranks beyond the largest power of two hand theirs to a partner
// first.
absl::Status RecursiveDoubling(const CollectiveContext& context, const Call& call);
// The partners of a rank: at distances that are powers of two, and across the largest one.
std::vector<int> DoublingPeers(int rank, int size);
absl::Status TreeBroadcast(const CollectiveContext& context, const Call& call);
std::vector<int> TreePeers(int rank, int size, int root);
absl::Status ChainBroadcast(const CollectiveContext& context, const Call& call);
absl::Status DisseminationBarrier(const CollectiveContext& context);
std::vector<int> DisseminationPeers(int rank, int size);

}  // namespace muster::comm

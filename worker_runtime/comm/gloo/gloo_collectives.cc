#include "worker_runtime/comm/gloo/gloo_collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/reduce_kernels.h"
#include "worker_runtime/plan/staging.h"

namespace muster::comm {
namespace {

// The ring adds at every hop in the type that is sent, and in an order of its own.
bool CanSumOnTheRing(const Operation& op) {
  return AccumulationType(op.dtype) == op.dtype && op.order == SumOrder::kFast;
}

// Latency counts for more than bytes.
bool IsSmallAllReduce(const Operation& op) {
  return op.order == SumOrder::kFast && op.bytes() <= plan::kSmallBytes;
}
bool IsRingReduceScatter(const Operation& op) {
  return CanSumOnTheRing(op) && op.bytes() > plan::kSmallBytes;
}
bool IsTreeBroadcast(const Operation& op) { return op.bytes() <= kChunkBytes / 2; }

absl::Status AllReduce(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  if (IsSmallAllReduce(op)) return RecursiveDoubling(context, call);
  const Blocks blocks{op.count, context.size};
  void* own = At(call.output, op.dtype, blocks.begin(context.rank));
  if (CanSumOnTheRing(op)) {
    MUSTER_RETURN_IF_ERROR(RingReduceScatter(context, op, blocks, call.inputs[0], own));
  } else {
    MUSTER_RETURN_IF_ERROR(DirectReduceScatter(context, call, blocks, own));
  }
  return RingAllGather(context, op.dtype, blocks, call.output);
}

absl::Status ReduceScatter(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  const Blocks blocks{op.count * context.size, context.size};
  if (IsRingReduceScatter(op)) {
    return RingReduceScatter(context, op, blocks, call.inputs[0], call.output);
  }
  return DirectReduceScatter(context, call, blocks, call.output);
}

absl::Status AllGather(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  uint8_t* own = At(call.output, op.dtype, context.rank * op.count);
  if (op.count > 0 && own != call.inputs[0]) std::memcpy(own, call.inputs[0], op.bytes());
  return RingAllGather(context, op.dtype, {op.count * context.size, context.size}, call.output);
}

std::vector<int> Others(int rank, int size) {
  std::vector<int> out;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) out.push_back(peer);
  }
  return out;
}

// The peers that `op` needs beside the neighbours on the ring, which PeersOf adds.
std::vector<int> FarPeersOf(const Operation& op, int rank, int size) {
  switch (op.kind) {
    case OperationKind::kAllReduce:
      if (IsSmallAllReduce(op)) return DoublingPeers(rank, size);
      return CanSumOnTheRing(op) ? std::vector<int>() : Others(rank, size);
    case OperationKind::kReduceScatter:
      return IsRingReduceScatter(op) ? std::vector<int>() : Others(rank, size);
    case OperationKind::kBroadcast:
      return IsTreeBroadcast(op) ? TreePeers(rank, size, op.peer) : std::vector<int>();
    case OperationKind::kAllToAll:
      return Others(rank, size);
    case OperationKind::kBarrier:
      return DisseminationPeers(rank, size);
    default:
      return {};
  }
}

}  // namespace

std::vector<int> PeersOf(const Operation& op, int rank, int size) {
  std::vector<int> peers = FarPeersOf(op, rank, size);
  peers.push_back((rank + 1) % size);
  peers.push_back((rank + size - 1) % size);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

absl::Status RunCollective(const CollectiveContext& context, const Call& call) {
  switch (call.operation.kind) {
    case OperationKind::kAllReduce:
      return AllReduce(context, call);
    case OperationKind::kReduceScatter:
      return ReduceScatter(context, call);
    case OperationKind::kAllGather:
      return AllGather(context, call);
    case OperationKind::kBroadcast:
      return IsTreeBroadcast(call.operation) ? TreeBroadcast(context, call)
                                             : ChainBroadcast(context, call);
    case OperationKind::kAllToAll:
      return DirectAllToAll(context, call);
    case OperationKind::kBarrier:
      return DisseminationBarrier(context);
    case OperationKind::kSend:
    case OperationKind::kRecv:
      break;
  }
  return absl::InternalError("send and receive are not collectives");
}

}  // namespace muster::comm

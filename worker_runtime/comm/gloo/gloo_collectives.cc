#include "worker_runtime/comm/gloo/gloo_collectives.h"

#include <cstring>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

// The ring adds at every hop in the type that is sent, and in an order of its own.
bool CanSumOnTheRing(const Operation& op) {
  return AccumulationType(op.dtype) == op.dtype && op.order == SumOrder::kFast;
}

absl::Status AllReduce(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  if (op.order == SumOrder::kFast && op.bytes() <= kSmallBytes) {
    return RecursiveDoubling(context, call);
  }
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
  if (CanSumOnTheRing(op) && op.bytes() > kSmallBytes) {
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

}  // namespace

absl::Status RunCollective(const CollectiveContext& context, const Call& call) {
  switch (call.operation.kind) {
    case OperationKind::kAllReduce:
      return AllReduce(context, call);
    case OperationKind::kReduceScatter:
      return ReduceScatter(context, call);
    case OperationKind::kAllGather:
      return AllGather(context, call);
    case OperationKind::kBroadcast:
      return call.operation.bytes() <= kChunkBytes / 2 ? TreeBroadcast(context, call)
                                                       : ChainBroadcast(context, call);
    case OperationKind::kAllToAll:
      return DirectAllToAll(context, call);
    case OperationKind::kBarrier:
      return DisseminationBarrier(context);
    case OperationKind::kSend:
    case OperationKind::kRecv:
      break;
  }
  return absl::InternalError("send and receive are no collectives");
}

}  // namespace muster::comm

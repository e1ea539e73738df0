#include "worker_runtime/comm/loopback/reference_collectives.h"

#include <cstring>
#include <vector>

#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

using Bytes = std::vector<uint8_t>;

// The reduction of elements [first, first + count) of every rank's inputs, in the operation's own
// type.
Bytes ReduceAll(absl::Span<const Call* const> calls, int64_t first, int64_t count) {
  const Operation& op = calls[0]->operation;
  const DType wide = AccumulationType(op.dtype);
  std::vector<Bytes> roots;
  for (const Call* call : calls) {
    for (const void* input : call->inputs) {
      Bytes& root = roots.emplace_back(count * SizeOf(wide));
      Widen(op.dtype, root.data(), At(input, op.dtype, first), count);
    }
  }
  if (op.order == SumOrder::kOrdered) {
    std::vector<void*> pointers;
    for (Bytes& root : roots) pointers.push_back(root.data());
    const auto ranges = OrderedContributions(static_cast<int>(calls.size()), op.leaves_per_rank);
    CombineByTree(wide, op.reduce, ranges, pointers, count);
  } else {
    for (size_t i = 1; i < roots.size(); ++i) {
      Accumulate(wide, op.reduce, roots[0].data(), roots[i].data(), count);
    }
  }
  Bytes out(count * SizeOf(op.dtype));
  Narrow(op.dtype, out.data(), roots[0].data(), count);
  return out;
}

// One block of each rank's input; `block` of it.
Bytes Concatenate(absl::Span<const Call* const> calls, int64_t block) {
  Bytes out;
  const Operation& op = calls[0]->operation;
  for (const Call* call : calls) {
    const uint8_t* begin = At(call->inputs[0], op.dtype, block * op.count);
    if (op.count > 0) out.insert(out.end(), begin, begin + op.bytes());
  }
  return out;
}

Bytes ResultOf(absl::Span<const Call* const> calls, int64_t rank) {
  const Operation& op = calls[0]->operation;
  switch (op.kind) {
    case OperationKind::kAllReduce:
      return ReduceAll(calls, 0, op.count);
    case OperationKind::kReduceScatter:
      return ReduceAll(calls, rank * op.count, op.count);
    case OperationKind::kAllGather:
      return Concatenate(calls, 0);
    case OperationKind::kAllToAll:
      return Concatenate(calls, rank);
    case OperationKind::kBroadcast:
      return Concatenate(calls.subspan(op.peer, 1), 0);
    default:
      return {};
  }
}

}  // namespace

void RunReference(absl::Span<const Call* const> calls) {
  std::vector<Bytes> results;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    results.push_back(ResultOf(calls, static_cast<int64_t>(rank)));
  }
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (!results[rank].empty()) {
      std::memcpy(calls[rank]->output, results[rank].data(), results[rank].size());
    }
  }
}

}  // namespace muster::comm

// Collectives in which each rank sends each other one message.
#include <cstring>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/gloo/gloo_collectives.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

// Collects every rank's contributions to the block that this rank owns, and reduces them.
class DirectReduction {
 public:
  DirectReduction(const CollectiveContext& context, const Call& call, const Blocks& blocks)
      : context_(context),
        call_(call),
        op_(call.operation),
        blocks_(blocks),
        num_own_(blocks.num_elements(context.rank)) {
    const bool ordered = op_.order == SumOrder::kOrdered;
    ranges_ = OrderedContributions(context.size, ordered ? op_.leaves_per_rank : 1);
    for (int rank = 0; rank <= context.size; ++rank) {
      first_of_.push_back(
          NumContributionsBefore(rank, context.size, ordered ? op_.leaves_per_rank : 1));
    }
  }

  absl::Status Run(void* output) {
    MUSTER_RETURN_IF_ERROR(Exchange());
    ReduceOwn(output);
    return absl::OkStatus();
  }

 private:
  absl::Status Exchange() {
    received_.resize(ranges_.size());
    std::vector<Transfer> receives;
    const size_t own_bytes = num_own_ * SizeOf(op_.dtype);
    for (int distance = 1; distance < context_.size; ++distance) {
      const int from = (context_.rank + context_.size - distance) % context_.size;
      for (int64_t i = first_of_[from]; i < first_of_[from + 1]; ++i) {
        received_[i] = context_.exchange.Scratch(own_bytes);
        MUSTER_ASSIGN_OR_RETURN(
            Transfer receive, context_.exchange.Receive(from, IndexOf(i), received_[i], own_bytes));
        receives.push_back(std::move(receive));
      }
    }
    for (int distance = 1; distance < context_.size; ++distance) {
      MUSTER_RETURN_IF_ERROR(SendBlockTo((context_.rank + distance) % context_.size));
    }
    for (Transfer& receive : receives) MUSTER_RETURN_IF_ERROR(context_.exchange.Wait(receive));
    // Our own block is an output next; the others have left before it can be overwritten.
    return context_.exchange.WaitForSends();
  }

  absl::Status SendBlockTo(int peer) {
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      MUSTER_RETURN_IF_ERROR(
          context_.exchange.Send(peer, IndexOf(first_of_[context_.rank] + i),
                                 At(call_.inputs[i], op_.dtype, blocks_.begin(peer)),
                                 blocks_.num_elements(peer) * SizeOf(op_.dtype)));
    }
    return absl::OkStatus();
  }

  void ReduceOwn(void* output) {
    const DType wide = AccumulationType(op_.dtype);
    std::vector<void*> pointers;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const void* source = received_[i];
      if (source == nullptr) {
        source =
            At(call_.inputs[i - first_of_[context_.rank]], op_.dtype, blocks_.begin(context_.rank));
      }
      if (received_[i] == nullptr || wide != op_.dtype) {
        pointers.push_back(context_.exchange.Scratch(num_own_ * SizeOf(wide)));
        Widen(op_.dtype, pointers.back(), source, num_own_);
      } else {
        pointers.push_back(received_[i]);
      }
    }
    if (op_.order == SumOrder::kOrdered) {
      CombineByTree(wide, op_.reduce, ranges_, pointers, num_own_);
    } else {
      for (size_t i = 1; i < pointers.size(); ++i) {
        Accumulate(wide, op_.reduce, pointers[0], pointers[i], num_own_);
      }
    }
    Narrow(op_.dtype, output, pointers[0], num_own_);
  }

  static uint32_t IndexOf(int64_t contribution) { return static_cast<uint32_t>(contribution); }

  const CollectiveContext& context_;
  const Call& call_;
  const Operation& op_;
  const Blocks blocks_;
  const int64_t num_own_;
  std::vector<LeafRange> ranges_;   // of every contribution
  std::vector<int64_t> first_of_;   // [size + 1], each rank's first contribution
  std::vector<uint8_t*> received_;  // null: our own
};

}  // namespace

absl::Status DirectReduceScatter(const CollectiveContext& context, const Call& call,
                                 const Blocks& blocks, void* output) {
  return DirectReduction(context, call, blocks).Run(output);
}

absl::Status DirectAllToAll(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  std::vector<Transfer> receives;
  for (int distance = 1; distance < context.size; ++distance) {
    const int from = (context.rank + context.size - distance) % context.size;
    MUSTER_ASSIGN_OR_RETURN(
        Transfer receive,
        context.exchange.Receive(from, 0, At(call.output, op.dtype, from * op.count), op.bytes()));
    receives.push_back(std::move(receive));
  }
  for (int distance = 1; distance < context.size; ++distance) {
    const int to = (context.rank + distance) % context.size;
    MUSTER_RETURN_IF_ERROR(
        context.exchange.Send(to, 0, At(call.inputs[0], op.dtype, to * op.count), op.bytes()));
  }
  if (op.count > 0) {
    std::memcpy(At(call.output, op.dtype, context.rank * op.count),
                At(call.inputs[0], op.dtype, context.rank * op.count), op.bytes());
  }
  for (Transfer& receive : receives) MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receive));
  return context.exchange.WaitForSends();
}

}  // namespace muster::comm

// Collectives of about log2(n) steps.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/gloo/gloo_collectives.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

// Sums in the accumulation type throughout.
class DoublingReduction {
 public:
  DoublingReduction(const CollectiveContext& context, const Operation& operation)
      : context_(context),
        op_(operation),
        wide_(AccumulationType(operation.dtype)),
        num_paired_(static_cast<int>(std::bit_floor(static_cast<unsigned>(context.size)))),
        bytes_(operation.count * SizeOf(wide_)),
        sum_(context.exchange.Scratch(bytes_)),
        received_(context.exchange.Scratch(bytes_)) {}

  absl::Status Run(const void* input, void* output) {
    Widen(op_.dtype, sum_, input, op_.count);
    const int partner = context_.rank ^ num_paired_;  // across the power of two
    if (context_.rank >= num_paired_) {
      MUSTER_RETURN_IF_ERROR(SendSum(partner, kFoldIndex));
      MUSTER_RETURN_IF_ERROR(Receive(partner, kUnfoldIndex, sum_));
    } else {
      MUSTER_RETURN_IF_ERROR(ReducePaired(partner));
    }
    Narrow(op_.dtype, output, sum_, op_.count);
    return absl::OkStatus();
  }

 private:
  static constexpr uint32_t kFoldIndex = 64;
  static constexpr uint32_t kUnfoldIndex = 65;

  absl::Status ReducePaired(int partner) {
    if (partner < context_.size) {
      MUSTER_RETURN_IF_ERROR(Receive(partner, kFoldIndex, received_));
      Accumulate(wide_, op_.reduce, sum_, received_, op_.count);
    }
    for (int distance = 1, step = 0; distance < num_paired_; distance *= 2, ++step) {
      const int peer = context_.rank ^ distance;
      MUSTER_ASSIGN_OR_RETURN(Transfer receive,
                              context_.exchange.Receive(peer, step, received_, bytes_));
      MUSTER_RETURN_IF_ERROR(SendSum(peer, step));
      MUSTER_RETURN_IF_ERROR(context_.exchange.Wait(receive));
      Accumulate(wide_, op_.reduce, sum_, received_, op_.count);
    }
    return partner < context_.size ? SendSum(partner, kUnfoldIndex) : absl::OkStatus();
  }

  absl::Status SendSum(int peer, uint32_t index) {
    MUSTER_RETURN_IF_ERROR(context_.exchange.Send(peer, index, sum_, bytes_));
    return context_.exchange.WaitForSends();
  }
  absl::Status Receive(int peer, uint32_t index, uint8_t* into) {
    MUSTER_ASSIGN_OR_RETURN(Transfer receive, context_.exchange.Receive(peer, index, into, bytes_));
    return context_.exchange.Wait(receive);
  }

  const CollectiveContext& context_;
  const Operation& op_;
  const DType wide_;
  const int num_paired_;
  const size_t bytes_;
  uint8_t* const sum_;
  uint8_t* const received_;
};

}  // namespace

absl::Status RecursiveDoubling(const CollectiveContext& context, const Call& call) {
  return DoublingReduction(context, call.operation).Run(call.inputs[0], call.output);
}

std::vector<int> DoublingPeers(int rank, int size) {
  const int num_paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  std::vector<int> peers;
  if ((rank ^ num_paired) < size) peers.push_back(rank ^ num_paired);
  for (int distance = 1; distance < num_paired && rank < num_paired; distance *= 2) {
    peers.push_back(rank ^ distance);
  }
  return peers;
}

absl::Status TreeBroadcast(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  const int place = (context.rank - op.peer + context.size) % context.size;  // the root is at 0
  const auto rank_at = [&](int p) { return (p + op.peer) % context.size; };
  // Our parent lacks our lowest set bit; our children have one below it set.
  int bit = place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(context.size)))
                       : place & -place;
  if (place != 0) {
    MUSTER_ASSIGN_OR_RETURN(Transfer receive, context.exchange.Receive(rank_at(place - bit), 0,
                                                                       call.output, op.bytes()));
    MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receive));
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit >= context.size) continue;
    MUSTER_RETURN_IF_ERROR(context.exchange.Send(rank_at(place + bit), 0, call.output, op.bytes()));
  }
  return context.exchange.WaitForSends();
}

std::vector<int> TreePeers(int rank, int size, int root) {
  const int place = (rank - root + size) % size;
  int bit =
      place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : place & -place;
  std::vector<int> places;
  if (place != 0) places.push_back(place - bit);
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit < size) places.push_back(place + bit);
  }
  for (int& each : places) each = (each + root) % size;
  return places;
}

absl::Status ChainBroadcast(const CollectiveContext& context, const Call& call) {
  const Operation& op = call.operation;
  const bool is_first = context.rank == op.peer;
  const bool is_last = context.right() == op.peer;
  constexpr int64_t kMostChunks = int64_t{1} << Exchange::kIndexBits;
  const int64_t num_chunks = std::min((op.bytes() + kChunkBytes - 1) / kChunkBytes, kMostChunks);
  const auto begin = [&](int64_t c) {
    return op.bytes() / num_chunks * c + op.bytes() % num_chunks * c / num_chunks;
  };
  uint8_t* data = static_cast<uint8_t*>(call.output);
  std::vector<Transfer> receives(num_chunks);
  for (int64_t c = 0; c < num_chunks && !is_first; ++c) {
    MUSTER_ASSIGN_OR_RETURN(receives[c],
                            context.exchange.Receive(context.left(), static_cast<uint32_t>(c),
                                                     data + begin(c), begin(c + 1) - begin(c)));
  }
  for (int64_t c = 0; c < num_chunks; ++c) {
    if (!is_first) MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receives[c]));
    if (is_last) continue;
    MUSTER_RETURN_IF_ERROR(context.exchange.Send(context.right(), static_cast<uint32_t>(c),
                                                 data + begin(c), begin(c + 1) - begin(c)));
  }
  return context.exchange.WaitForSends();
}

std::vector<int> DisseminationPeers(int rank, int size) {
  std::vector<int> peers;
  for (int distance = 1; distance < size; distance *= 2) {
    peers.push_back((rank + distance) % size);
    peers.push_back((rank + size - distance) % size);
  }
  return peers;
}

absl::Status DisseminationBarrier(const CollectiveContext& context) {
  uint8_t* token = context.exchange.Scratch(1);
  uint8_t* received = context.exchange.Scratch(1);
  *token = 1;
  uint32_t step = 0;
  for (int distance = 1; distance < context.size; distance *= 2, ++step) {
    const int from = (context.rank + context.size - distance) % context.size;
    MUSTER_ASSIGN_OR_RETURN(Transfer receive, context.exchange.Receive(from, step, received, 1));
    MUSTER_RETURN_IF_ERROR(
        context.exchange.Send((context.rank + distance) % context.size, step, token, 1));
    MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receive));
  }
  return context.exchange.WaitForSends();
}

}  // namespace muster::comm

// Collectives along a ring.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/gloo/gloo_collectives.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

// Gathering follows scattering in one operation; their messages must not meet.
constexpr uint32_t kGatherIndex = uint32_t{1} << (Exchange::kIndexBits - 1);

// A block cut into chunks of about kChunkBytes; every block of an operation into as many.
class Chunks {
 public:
  Chunks(const Blocks& blocks, DType dtype, int num_steps) : blocks_(blocks) {
    const int64_t largest = (blocks.count + blocks.size - 1) / blocks.size * SizeOf(dtype);
    // The bound keeps every message's index in its bits.
    const int64_t most = kGatherIndex / std::max(num_steps, 1);
    per_block_ = std::clamp<int64_t>((largest + kChunkBytes - 1) / kChunkBytes, 1, most);
  }

  int64_t per_block() const { return per_block_; }
  uint32_t Index(int step, int64_t chunk) const {
    return static_cast<uint32_t>(step * per_block_ + chunk);
  }
  // The offset of a chunk from the beginning of its block, in elements.
  int64_t begin(int block, int64_t chunk) const {
    const int64_t elements = blocks_.num_elements(block);
    return elements / per_block_ * chunk + elements % per_block_ * chunk / per_block_;
  }
  int64_t num_elements(int block, int64_t chunk) const {
    return begin(block, chunk + 1) - begin(block, chunk);
  }

 private:
  const Blocks blocks_;
  int64_t per_block_ = 1;
};

// Step s receives from the left the partial sum of block rank - s - 2 and adds our own on the way;
// step s + 1 sends it on. Two scratch blocks in turn, so that a chunk is received while the one
// before it is sent. What is received last goes to the output.
class RingReduction {
 public:
  RingReduction(const CollectiveContext& context, const Operation& operation, const Blocks& blocks,
                const void* input, void* output)
      : context_(context),
        operation_(operation),
        blocks_(blocks),
        chunks_(blocks, operation.dtype, context.size - 1),
        input_(input),
        output_(output) {
    // Only what lands takes memory between two ranks, as nothing is sent on.
    const size_t num_blocks = context.size > 2                                ? 2
                              : context.exchange.NeedsLanding(context.left()) ? 1
                                                                              : 0;
    const int64_t largest = (blocks.count + blocks.size - 1) / blocks.size;
    for (size_t i = 0; i < num_blocks; ++i) {
      scratch_[i] = context.exchange.Scratch(largest * SizeOf(operation.dtype));
    }
    receives_.resize(last_step() + 1);
    for (auto& step : receives_) step.resize(chunks_.per_block());
  }

  absl::Status Run() {
    for (int64_t c = 0; c < chunks_.per_block(); ++c) MUSTER_RETURN_IF_ERROR(Receive(0, c));
    for (int64_t c = 0; c < chunks_.per_block(); ++c) {
      MUSTER_RETURN_IF_ERROR(Send(0, c, InputChunk(BlockReceivedAt(-1), c)));
    }
    for (int step = 0; step <= last_step(); ++step) {
      for (int64_t c = 0; c < chunks_.per_block(); ++c) MUSTER_RETURN_IF_ERROR(Advance(step, c));
    }
    return context_.exchange.WaitForSends();
  }

 private:
  int last_step() const { return context_.size - 2; }
  int BlockReceivedAt(int step) const {
    return (context_.rank - step - 2 + 2 * context_.size) % context_.size;
  }
  const uint8_t* InputChunk(int block, int64_t c) const {
    return At(input_, operation_.dtype, blocks_.begin(block) + chunks_.begin(block, c));
  }
  uint8_t* ScratchChunk(int step, int64_t c) {
    uint8_t* scratch = scratch_[step % 2];
    if (scratch == nullptr) return nullptr;
    return At(scratch, operation_.dtype, chunks_.begin(BlockReceivedAt(step), c));
  }
  size_t ChunkBytes(int block, int64_t c) const {
    return chunks_.num_elements(block, c) * SizeOf(operation_.dtype);
  }

  absl::Status Receive(int step, int64_t c) {
    const int block = BlockReceivedAt(step);
    void* partial = ScratchChunk(step, c);
    void* out =
        step < last_step() ? partial : At(output_, operation_.dtype, chunks_.begin(block, c));
    MUSTER_ASSIGN_OR_RETURN(receives_[step][c], context_.exchange.ReceiveReduced(
                                                    context_.left(), chunks_.Index(step, c),
                                                    {.dtype = operation_.dtype,
                                                     .out = out,
                                                     .own = InputChunk(block, c),
                                                     .landing = partial,
                                                     .count = chunks_.num_elements(block, c)}));
    return absl::OkStatus();
  }
  absl::Status Send(int step, int64_t c, const void* data) {
    return context_.exchange.Send(context_.right(), chunks_.Index(step, c), data,
                                  ChunkBytes(BlockReceivedAt(step - 1), c));
  }

  absl::Status Advance(int step, int64_t c) {
    if (step < last_step()) {
      // The scratch that we receive into next was sent from one step ago, in the same order.
      MUSTER_RETURN_IF_ERROR(context_.exchange.WaitForSends(chunks_.per_block() - 1));
      MUSTER_RETURN_IF_ERROR(Receive(step + 1, c));
    }
    MUSTER_RETURN_IF_ERROR(context_.exchange.Wait(receives_[step][c]));
    return step < last_step() ? Send(step + 1, c, ScratchChunk(step, c)) : absl::OkStatus();
  }

  const CollectiveContext& context_;
  const Operation& operation_;
  const Blocks blocks_;
  const Chunks chunks_;
  const void* const input_;
  void* const output_;
  std::array<uint8_t*, 2> scratch_ = {};         // null: nothing lands
  std::vector<std::vector<Transfer>> receives_;  // [size - 1][per_block]
};

}  // namespace

absl::Status RingReduceScatter(const CollectiveContext& context, const Operation& operation,
                               const Blocks& blocks, const void* input, void* output) {
  return RingReduction(context, operation, blocks, input, output).Run();
}

absl::Status RingAllGather(const CollectiveContext& context, DType dtype, const Blocks& blocks,
                           void* buffer) {
  const int num_steps = context.size - 1;
  const Chunks chunks(blocks, dtype, num_steps);
  const auto data = [&](int block, int64_t c) {
    return At(buffer, dtype, blocks.begin(block) + chunks.begin(block, c));
  };
  const auto bytes = [&](int block, int64_t c) {
    return chunks.num_elements(block, c) * SizeOf(dtype);
  };
  const auto block_sent_at = [&](int step) {
    return (context.rank - step + context.size) % context.size;
  };
  std::vector<Transfer> receives;
  for (int step = 0; step < num_steps; ++step) {
    const int block = block_sent_at(step + 1);
    for (int64_t c = 0; c < chunks.per_block(); ++c) {
      MUSTER_ASSIGN_OR_RETURN(
          Transfer receive,
          context.exchange.Receive(context.left(), kGatherIndex + chunks.Index(step, c),
                                   data(block, c), bytes(block, c)));
      receives.push_back(std::move(receive));
    }
  }
  for (int step = 0; step < num_steps; ++step) {
    const int block = block_sent_at(step);
    for (int64_t c = 0; c < chunks.per_block(); ++c) {
      if (step > 0)
        MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receives[chunks.Index(step - 1, c)]));
      MUSTER_RETURN_IF_ERROR(context.exchange.Send(
          context.right(), kGatherIndex + chunks.Index(step, c), data(block, c), bytes(block, c)));
    }
  }
  for (int64_t c = 0; c < chunks.per_block(); ++c) {
    MUSTER_RETURN_IF_ERROR(context.exchange.Wait(receives[chunks.Index(num_steps - 1, c)]));
  }
  return context.exchange.WaitForSends();
}

}  // namespace muster::comm

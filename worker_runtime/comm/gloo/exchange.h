// The messages of one operation: what its algorithm sends, receives and waits for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/gloo/links.h"
#include "worker_runtime/comm/operation.h"
#include "worker_runtime/plan/staging.h"

namespace muster::comm {

// Which messages may meet. Data is kept apart by operation, so that ranks that call different
// operations never write into each other's buffers; what is always of one size is kept apart by
// sequence alone.
enum class SlotClass : uint8_t {
  kControl = 1,
  kHeader = 2,
  kData = 3,
  kTransferHeader = 4,
  kTransfer = 5
};

uint64_t SlotOf(SlotClass slot_class, const Operation& operation, uint32_t index);

// Memory for the messages of operations that run one after the other.
//
// Threads: one, but for most().
class ScratchMemory {
 public:
  // The memory is not cleared. It stays until GiveBackAll.
  uint8_t* Take(size_t bytes);
  void GiveBackAll();

  // Bytes that were held at once so far.
  int64_t most() const { return most_; }

 private:
  plan::StagingBlocks blocks_;
  std::vector<std::unique_ptr<uint8_t[]>> memory_;  // by block
  std::atomic<int64_t> most_ = 0;
};

// Threads: one.
class Exchange {
 public:
  // `index` of a message: below 2^kIndexBits, different for each that two ranks exchange in one
  // operation.
  static constexpr int kIndexBits = 20;

  // All of them must outlive the exchange.
  Exchange(Links& links, WaitPoint& point, ScratchMemory& memory, const Operation& operation)
      : links_(links), point_(point), memory_(memory), operation_(operation) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Called before the first message to or from any of `peers`, all of the operation's.
  absl::Status Reach(absl::Span<const int> peers);

  // The memory must stay until WaitForSends, or the end of the exchange; Scratch and the call's own
  // buffers do.
  absl::Status Send(int peer, uint32_t index, const void* data, size_t bytes);
  absl::StatusOr<Transfer> Receive(int peer, uint32_t index, void* data, size_t bytes);
  // Receives partial sums: out = received + own, for the operation's reduction. `landing` holds as
  // many elements and may be `out`; it may stay untouched.
  struct Reduction {
    DType dtype = DType::kF32;
    void* out = nullptr;
    const void* own = nullptr;
    void* landing = nullptr;
    int64_t count = 0;
  };
  absl::StatusOr<Transfer> ReceiveReduced(int peer, uint32_t index, const Reduction& reduction);
  absl::Status Wait(Transfer& transfer);
  absl::Status WaitForSends();
  // Waits until at most `in_flight` of the sends, the latest, are not done.
  absl::Status WaitForSends(size_t in_flight);

  // Memory that lives as long as the exchange. Not cleared.
  uint8_t* Scratch(size_t bytes) { return memory_.Take(bytes); }

  // Whether a ReceiveReduced from `peer` touches its landing.
  bool NeedsLanding(int peer) const { return !links_.IsShared(peer); }

  // Sends our operation to the right neighbour and expects the left one's. It is looked at when
  // something is first waited for, so that it costs no round of its own: data of operations that
  // differ cannot meet.
  absl::Status ShowOperation(int right, int left);
  // Errors: kInvalidArgument if the left neighbour calls something else.
  absl::Status CheckNeighbour();

  // The same for messages of a class of their own.
  absl::Status Send(SlotClass slot_class, int peer, const void* data, size_t bytes);
  absl::StatusOr<Transfer> Receive(SlotClass slot_class, int peer, void* data, size_t bytes);

  // The rank whose connection broke; -1: none has.
  int lost_peer() const { return lost_peer_; }

 private:
  absl::Status Note(absl::Status status, int peer);
  absl::Status Start(int peer, SlotClass slot_class, uint32_t index, const void* data,
                     size_t bytes);

  Links& links_;
  WaitPoint& point_;
  ScratchMemory& memory_;
  const Operation& operation_;
  std::vector<Transfer> sends_;
  size_t num_waited_ = 0;
  Transfer neighbour_;
  const uint8_t* neighbours_operation_ = nullptr;  // null: none expected, or already looked at
  int lost_peer_ = -1;
};

}  // namespace muster::comm

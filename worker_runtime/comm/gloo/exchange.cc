#include "worker_runtime/comm/gloo/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {

namespace {

Stream StreamOf(SlotClass slot_class) {
  const bool is_transfer =
      slot_class == SlotClass::kTransfer || slot_class == SlotClass::kTransferHeader;
  return is_transfer ? Stream::kTransfers : Stream::kCollectives;
}

}  // namespace

uint64_t SlotOf(SlotClass slot_class, const Operation& operation, uint32_t index) {
  MUSTER_CHECK(index >> Exchange::kIndexBits == 0);
  const uint64_t sequence = static_cast<uint64_t>(operation.sequence);
  const uint64_t prefix = static_cast<uint64_t>(slot_class) << 60;
  switch (slot_class) {
    case SlotClass::kControl:
      return prefix;
    case SlotClass::kHeader:
    case SlotClass::kTransferHeader:
      return prefix | (sequence & 0xffffffff);
    case SlotClass::kData:
      return prefix | (sequence & 0xff) << 52 | uint64_t{Fingerprint(operation)} << 20 | index;
    case SlotClass::kTransfer:
      // Sender and receiver have agreed on the size by then; their operations differ in kind and
      // peer.
      return prefix | (sequence & 0xffffffff) << 20 | index;
  }
  return 0;
}

absl::Status Exchange::Note(absl::Status status, int peer) {
  if (absl::IsUnavailable(status)) lost_peer_ = peer;
  return status;
}

absl::Status Exchange::Reach(absl::Span<const int> peers) { return links_.Reach(peers, point_); }

absl::Status Exchange::Send(int peer, uint32_t index, const void* data, size_t bytes) {
  return Start(peer, SlotClass::kData, index, data, bytes);
}

absl::Status Exchange::Send(SlotClass slot_class, int peer, const void* data, size_t bytes) {
  return Start(peer, slot_class, 0, data, bytes);
}

absl::Status Exchange::Start(int peer, SlotClass slot_class, uint32_t index, const void* data,
                             size_t bytes) {
  absl::StatusOr<Transfer> transfer =
      links_.Send(peer, StreamOf(slot_class), SlotOf(slot_class, operation_, index), data, bytes);
  MUSTER_RETURN_IF_ERROR(Note(transfer.status(), peer));
  sends_.push_back(*std::move(transfer));
  return absl::OkStatus();
}

absl::StatusOr<Transfer> Exchange::Receive(int peer, uint32_t index, void* data, size_t bytes) {
  absl::StatusOr<Transfer> transfer = links_.Receive(
      peer, Stream::kCollectives, SlotOf(SlotClass::kData, operation_, index), data, bytes);
  MUSTER_RETURN_IF_ERROR(Note(transfer.status(), peer));
  return transfer;
}

absl::StatusOr<Transfer> Exchange::Receive(SlotClass slot_class, int peer, void* data,
                                           size_t bytes) {
  absl::StatusOr<Transfer> transfer =
      links_.Receive(peer, StreamOf(slot_class), SlotOf(slot_class, operation_, 0), data, bytes);
  MUSTER_RETURN_IF_ERROR(Note(transfer.status(), peer));
  return transfer;
}

absl::StatusOr<Transfer> Exchange::ReceiveReduced(int peer, uint32_t index,
                                                  const Reduction& reduction) {
  const size_t element = SizeOf(reduction.dtype);
  absl::StatusOr<Transfer> transfer = links_.ReceiveParts(
      peer, Stream::kCollectives, SlotOf(SlotClass::kData, operation_, index), reduction.landing,
      reduction.count * element,
      [reduction, element, op = operation_.reduce](const uint8_t* from, size_t offset,
                                                   size_t bytes) {
        const int64_t first = static_cast<int64_t>(offset / element);
        Combine(reduction.dtype, op, At(reduction.out, reduction.dtype, first), from,
                At(reduction.own, reduction.dtype, first), static_cast<int64_t>(bytes / element));
      });
  MUSTER_RETURN_IF_ERROR(Note(transfer.status(), peer));
  return transfer;
}

// What is in flight goes before the memory that it uses.
Exchange::~Exchange() {
  sends_.clear();
  neighbour_ = Transfer();
  memory_.GiveBackAll();
}

uint8_t* ScratchMemory::Take(size_t bytes) {
  const size_t block = blocks_.Take(static_cast<int64_t>(bytes));
  if (block == memory_.size()) memory_.emplace_back();
  if (memory_[block] == nullptr) memory_[block].reset(new uint8_t[bytes]);
  most_ = blocks_.most();
  return memory_[block].get();
}

void ScratchMemory::GiveBackAll() {
  blocks_.GiveBackAll();
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (blocks_.bytes(i) == 0) memory_[i].reset();
  }
}

absl::Status Exchange::ShowOperation(int right, int left) {
  uint8_t* ours = Scratch(kOperationWireBytes);
  uint8_t* theirs = Scratch(kOperationWireBytes);
  Encode(operation_, ours);
  MUSTER_ASSIGN_OR_RETURN(neighbour_,
                          Receive(SlotClass::kHeader, left, theirs, kOperationWireBytes));
  neighbours_operation_ = theirs;
  return Send(SlotClass::kHeader, right, ours, kOperationWireBytes);
}

absl::Status Exchange::CheckNeighbour() {
  if (neighbours_operation_ == nullptr) return absl::OkStatus();
  const uint8_t* bytes = std::exchange(neighbours_operation_, nullptr);
  MUSTER_RETURN_IF_ERROR(Note(links_.Wait(neighbour_, point_), neighbour_.peer()));
  MUSTER_ASSIGN_OR_RETURN(const Operation theirs, DecodeOperation(bytes));
  if (theirs == operation_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", neighbour_.peer(), " called ",
                                                 Signature(theirs), ", but this one ",
                                                 Signature(operation_)));
}

absl::Status Exchange::Wait(Transfer& transfer) {
  MUSTER_RETURN_IF_ERROR(CheckNeighbour());
  return Note(links_.Wait(transfer, point_), transfer.peer());
}

absl::Status Exchange::WaitForSends() { return WaitForSends(0); }

absl::Status Exchange::WaitForSends(size_t in_flight) {
  while (num_waited_ + in_flight < sends_.size()) {
    MUSTER_RETURN_IF_ERROR(Wait(sends_[num_waited_]));
    ++num_waited_;
  }
  return absl::OkStatus();
}

}  // namespace muster::comm

#include "worker_runtime/comm/shm/shm_links.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "proto/base/status_macros.h"
#include "worker_runtime/plan/staging.h"

namespace muster::comm {
namespace {

constexpr std::array<size_t, kNumStreams> kRingBytes = {plan::kCollectiveRingBytes,
                                                        plan::kTransferRingBytes};
// The other side is told after so many bytes, that the copies of both overlap.
constexpr size_t kPieceBytes = size_t{1} << 16;

constexpr size_t kPageBytes = 4096;

struct MessageHeader {
  uint64_t slot = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(MessageHeader) == ByteRing::kGrain);

constexpr size_t RoundUpToPage(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

ShmTransfer::~ShmTransfer() {
  if (queue == nullptr) return;
  queue->erase(std::remove(queue->begin(), queue->end(), this), queue->end());
}

// Header, counters of all rings, and, from a page on, their bytes: those of one member after
// another, in the order of streams.
size_t ShmLinks::SegmentBytes(int num_members) {
  const size_t counters = num_members * kNumStreams * sizeof(ByteRing::Counters);
  return RoundUpToPage(sizeof(Header) + counters) + num_members * (kRingBytes[0] + kRingBytes[1]);
}

ByteRing ShmLinks::RingOf(const SharedSegment& segment, int from, Stream stream) const {
  const size_t index = static_cast<size_t>(stream);
  const size_t num_rings = members_.size() * kNumStreams;
  auto* counters = reinterpret_cast<ByteRing::Counters*>(segment.data() + sizeof(Header));
  uint8_t* bytes = segment.data() +
                   RoundUpToPage(sizeof(Header) + num_rings * sizeof(ByteRing::Counters)) +
                   from * (kRingBytes[0] + kRingBytes[1]) + (index == 0 ? 0 : kRingBytes[0]);
  return ByteRing(counters + from * kNumStreams + index, bytes, kRingBytes[index]);
}

absl::StatusOr<std::unique_ptr<ShmLinks>> ShmLinks::Create(int self, int num_members) {
  std::unique_ptr<ShmLinks> links(new ShmLinks(self, num_members));
  Member& own = links->members_[self];
  MUSTER_ASSIGN_OR_RETURN(own.segment, SharedSegment::Create(SegmentBytes(num_members)));
  for (int from = 0; from < num_members; ++from) {
    for (const Stream stream : {Stream::kCollectives, Stream::kTransfers}) {
      links->members_[from].in[static_cast<size_t>(stream)].ring =
          links->RingOf(*own.segment, from, stream);
    }
  }
  return links;
}

ShmLinks::~ShmLinks() { Close(); }

absl::Status ShmLinks::Attach(int member, absl::string_view address) {
  Member& other = members_[member];
  MUSTER_ASSIGN_OR_RETURN(
      other.segment, SharedSegment::Open(address, SegmentBytes(static_cast<int>(members_.size()))));
  for (const Stream stream : {Stream::kCollectives, Stream::kTransfers}) {
    other.out[static_cast<size_t>(stream)].ring = RingOf(*other.segment, self_, stream);
  }
  return absl::OkStatus();
}

int64_t ShmLinks::bytes_used() const {
  int64_t bytes = 0;
  for (const Member& member : members_) {
    for (size_t stream = 0; stream < kNumStreams; ++stream) {
      if (member.in[stream].ring.written() > 0) bytes += static_cast<int64_t>(kRingBytes[stream]);
    }
  }
  return bytes;
}

void ShmLinks::Close() {
  members_[self_].header().is_closed.store(1, std::memory_order_seq_cst);
  for (const Member& member : members_) {
    if (member.segment == nullptr) continue;
    for (Bell& bell : member.header().bells) bell.Ring();
  }
}

std::unique_ptr<ShmTransfer> ShmLinks::Send(int member, Stream stream, uint64_t slot,
                                            const void* data, size_t bytes) {
  std::unique_ptr<ShmTransfer> transfer(new ShmTransfer);
  transfer->sends = true;
  transfer->member = member;
  transfer->stream = stream;
  transfer->slot = slot;
  transfer->data = static_cast<uint8_t*>(const_cast<void*>(data));  // only read from
  transfer->bytes = bytes;
  transfer->queue = &members_[member].out[static_cast<size_t>(stream)].queue;
  transfer->queue->push_back(transfer.get());
  PumpOut(members_[member], stream);
  return transfer;
}

std::unique_ptr<ShmTransfer> ShmLinks::Receive(int member, Stream stream, uint64_t slot, void* data,
                                               size_t bytes) {
  std::unique_ptr<ShmTransfer> transfer(new ShmTransfer);
  transfer->member = member;
  transfer->stream = stream;
  transfer->slot = slot;
  transfer->data = static_cast<uint8_t*>(data);
  transfer->bytes = bytes;
  transfer->queue = &members_[member].in[static_cast<size_t>(stream)].queue;
  transfer->queue->push_back(transfer.get());
  return transfer;
}

std::unique_ptr<ShmTransfer> ShmLinks::ReceiveParts(int member, Stream stream, uint64_t slot,
                                                    size_t bytes, TakePart take) {
  std::unique_ptr<ShmTransfer> transfer = Receive(member, stream, slot, nullptr, bytes);
  transfer->take = std::move(take);
  return transfer;
}

void ShmLinks::PumpOut(Member& member, Stream stream) {
  Way& way = member.out[static_cast<size_t>(stream)];
  const auto unwritten = std::find_if(way.queue.begin(), way.queue.end(),
                                      [](const ShmTransfer* t) { return t->end == 0; });
  bool rings = false;
  for (auto at = unwritten; at != way.queue.end(); ++at) {
    ShmTransfer& transfer = **at;
    if (!transfer.has_header) {
      if (way.ring.space() < sizeof(MessageHeader)) break;
      const MessageHeader header = {.slot = transfer.slot, .bytes = transfer.bytes};
      way.ring.Write(&header, sizeof(header), sizeof(header));
      transfer.has_header = true;
      rings = true;
    }
    size_t left = transfer.bytes - transfer.moved;
    while (left > 0) {
      const size_t size = std::min({RoundUpToGrain(left), way.ring.space(), kPieceBytes});
      if (size == 0) break;
      const size_t used = std::min(left, size);
      way.ring.Write(transfer.data + transfer.moved, used, size);
      transfer.moved += used;
      left -= used;
      member.bell(stream).Ring();
      rings = false;
    }
    if (left > 0) break;
    transfer.end = way.ring.written();
  }
  if (rings) member.bell(stream).Ring();
  while (!way.queue.empty() && way.queue.front()->end != 0 &&
         way.ring.IsReadUpTo(way.queue.front()->end)) {
    way.queue.front()->queue = nullptr;
    way.queue.pop_front();
  }
}

// False: nothing has come, or what has come awaits its receive.
bool ShmLinks::TakeHeader(Way& way) {
  if (way.ring.available() < sizeof(MessageHeader)) return false;
  MessageHeader header;
  way.ring.Peek(&header, sizeof(header));
  const auto found = std::find_if(way.queue.begin(), way.queue.end(), [&](ShmTransfer* transfer) {
    return transfer->slot == header.slot && transfer->bytes == header.bytes;
  });
  if (found == way.queue.end()) return false;
  way.ring.Read(sizeof(header), sizeof(header), [](const uint8_t*, size_t) {});
  way.current = *found;
  return true;
}

void ShmLinks::PumpIn(Member& member, Stream stream) {
  Way& way = member.in[static_cast<size_t>(stream)];
  while (way.current != nullptr || TakeHeader(way)) {
    ShmTransfer& transfer = *way.current;
    size_t left = transfer.bytes - transfer.moved;
    while (left > 0) {
      const size_t size = std::min({RoundUpToGrain(left), way.ring.available(), kPieceBytes});
      if (size == 0) return;
      const size_t used = std::min(left, size);
      way.ring.Read(used, size, [&transfer](const uint8_t* from, size_t count) {
        if (transfer.take == nullptr) {
          std::memcpy(transfer.data + transfer.moved, from, count);
        } else {
          transfer.take(from, transfer.moved, count);
        }
        transfer.moved += count;
      });
      left -= used;
      member.bell(stream).Ring();
    }
    way.queue.erase(std::find(way.queue.begin(), way.queue.end(), &transfer));
    transfer.queue = nullptr;
    way.current = nullptr;
  }
}

void ShmLinks::PumpTransfer(const ShmTransfer& transfer) {
  if (transfer.stream == Stream::kCollectives) {
    // One thread has all of them; the others' progress may be what the peer waits for.
    for (Member& member : members_) {
      if (member.segment == nullptr || &member == &members_[self_]) continue;
      PumpOut(member, transfer.stream);
      PumpIn(member, transfer.stream);
    }
  } else if (transfer.sends) {
    PumpOut(members_[transfer.member], transfer.stream);
  } else {
    PumpIn(members_[transfer.member], transfer.stream);
  }
}

absl::Status ShmLinks::CheckMember(const Member& member, bool looks_at_process) const {
  if (members_[self_].header().is_closed.load(std::memory_order_acquire) != 0) {
    return absl::UnavailableError("the connections are closed");
  }
  if (member.header().is_closed.load(std::memory_order_acquire) != 0) {
    return absl::UnavailableError("it has closed its shared memory");
  }
  if (looks_at_process && !member.segment->IsMakerAlive()) {
    return absl::UnavailableError("its process has ended");
  }
  return absl::OkStatus();
}

absl::Status ShmLinks::Wait(ShmTransfer& transfer, WaitPoint& point) {
  Bell& bell = members_[self_].bell(transfer.stream);
  const Member& member = members_[transfer.member];
  if (!point.Begin([&bell] { bell.Ring(); })) {
    return absl::AbortedError("the wait was interrupted");
  }
  absl::Status status;
  bool has_rung = true;
  while (true) {
    const uint32_t heard = bell.Listen();
    PumpTransfer(transfer);
    // What a member wrote before its end counts: an end that was seen is followed by one more look.
    if (transfer.queue == nullptr) status = absl::OkStatus();
    if (transfer.queue == nullptr || !status.ok()) break;
    if (point.is_interrupted()) {
      status = absl::AbortedError("the wait was interrupted");
    } else {
      status = CheckMember(member, /*looks_at_process=*/!has_rung);
    }
    if (status.ok()) has_rung = bell.WaitSince(heard, kPeerCheck);
  }
  point.End();
  return status;
}

}  // namespace muster::comm

// Messages between the ranks of one machine through memory that both map: for each ordered pair of
// ranks a ring per stream, which lies in the receiver's segment.
//
// Nobody moves bytes but the thread that waits for them: a wait writes what its rings have room for
// and reads what has come, so there is no thread here. A message is read once its receive has been
// posted, and holds up those behind it in its ring; the messages of a pair and stream are received
// in the order in which they are sent.
//
// A rank that closes says so in its segment. One that dies is noticed within kPeerCheck by those
// who wait for it, through a descriptor of its process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/shm/ring.h"
#include "worker_runtime/comm/shm/shared_segment.h"
#include "worker_runtime/comm/wait_point.h"

namespace muster::comm {

// What must not hold up each other. Of kCollectives one thread sends and receives; of kTransfers
// one thread per peer and direction.
enum class Stream : uint8_t { kCollectives, kTransfers };
inline constexpr int kNumStreams = 2;

// Takes `bytes` of a message, those from its `offset` on; both are whole elements of any type.
using TakePart = std::function<void(const uint8_t* from, size_t offset, size_t bytes)>;

class ShmLinks;

// One message in flight. Destroyed before it was waited for, it leaves its ring unusable.
//
// Threads: that of its stream, see Stream.
class ShmTransfer {
 public:
  ~ShmTransfer();
  ShmTransfer(const ShmTransfer&) = delete;
  ShmTransfer& operator=(const ShmTransfer&) = delete;

 private:
  friend class ShmLinks;
  ShmTransfer() = default;

  std::deque<ShmTransfer*>* queue = nullptr;  // of the links; null once it is done
  bool sends = false;
  int member = 0;
  Stream stream = Stream::kCollectives;
  uint64_t slot = 0;
  uint8_t* data = nullptr;
  TakePart take;  // of a receive: where its bytes go; null: to data
  size_t bytes = 0;
  size_t moved = 0;
  bool has_header = false;
  uint64_t end = 0;  // of a send that is written: where the ring's reader must have come
};

// Threads: safe within the bounds of Stream; Close from any thread.
class ShmLinks {
 public:
  static constexpr absl::Duration kPeerCheck = absl::Milliseconds(250);

  // The links of member `self` of `num_members`, the ranks of this machine in an order that all of
  // them know.
  //
  // Errors: kUnavailable: the system gives no such memory.
  static absl::StatusOr<std::unique_ptr<ShmLinks>> Create(int self, int num_members);
  ~ShmLinks();

  // The address that the other members give to their Attach.
  const std::string& address() const { return members_[self_].segment->address(); }
  // Errors: kUnavailable: this process cannot map that one's memory.
  absl::Status Attach(int member, absl::string_view address);

  // They send and receive as GlooMesh does. A send is done when the receiver has taken its last
  // byte.
  std::unique_ptr<ShmTransfer> Send(int member, Stream stream, uint64_t slot, const void* data,
                                    size_t bytes);
  std::unique_ptr<ShmTransfer> Receive(int member, Stream stream, uint64_t slot, void* data,
                                       size_t bytes);
  // The same for a receiver that reads the bytes where they lie, on the thread that waits.
  std::unique_ptr<ShmTransfer> ReceiveParts(int member, Stream stream, uint64_t slot, size_t bytes,
                                            TakePart take);

  // Waits until the transfer is done.
  //
  // Errors: kAborted: `point` was interrupted; kUnavailable: the member is gone or has closed.
  absl::Status Wait(ShmTransfer& transfer, WaitPoint& point);

  // All waits for this member, or for another one here, end with kUnavailable.
  void Close();

  // Bytes of those of this member's rings that something has come through.
  int64_t bytes_used() const;

 private:
  // What a segment begins with.
  struct Header {
    std::atomic<uint32_t> is_closed;
    std::array<Bell, kNumStreams> bells;  // of its member's waiting threads
  };
  // One direction of one pair and stream.
  struct Way {
    ByteRing ring;
    std::deque<ShmTransfer*> queue;
    // The transfer of the message that is being read; null between messages.
    ShmTransfer* current = nullptr;
  };
  struct Member {
    std::unique_ptr<SharedSegment> segment;  // null: not attached
    std::array<Way, kNumStreams> out;
    std::array<Way, kNumStreams> in;

    Header& header() const { return *reinterpret_cast<Header*>(segment->data()); }
    Bell& bell(Stream stream) const { return header().bells[static_cast<size_t>(stream)]; }
  };

  ShmLinks(int self, int num_members) : self_(self), members_(num_members) {}
  static size_t SegmentBytes(int num_members);
  // The ring in `segment` of what member `from` sends.
  ByteRing RingOf(const SharedSegment& segment, int from, Stream stream) const;
  void PumpTransfer(const ShmTransfer& transfer);
  void PumpOut(Member& member, Stream stream);
  void PumpIn(Member& member, Stream stream);
  static bool TakeHeader(Way& way);
  absl::Status CheckMember(const Member& member, bool looks_at_process) const;

  const int self_;
  std::vector<Member> members_;
};

}  // namespace muster::comm

// The connections of one rank to others of a group, over Gloo's TCP device. The only file that sees
// Gloo: its exceptions end here.
//
// Uses Gloo's device, pairs, unbound buffers with send, receive and abort of a wait. None of its
// collectives, since they cannot be aborted (worker_runtime/README.md "Communicators").
// Source: gloo/transport/{device,pair,unbound_buffer}.h of Debian's 2022 snapshot.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/comm/abort_switch.h"
#include "worker_runtime/comm/deadline_watch.h"
#include "worker_runtime/comm/wait_point.h"

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace muster::comm {

class GlooTurns;

// What the communicators of one process share: one I/O thread on one address, and one watch for
// deadlines.
struct GlooDevice {
  GlooDevice();
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  std::unique_ptr<GlooTurns> turns;  // of the I/O thread, which ends with `device`
  std::shared_ptr<gloo::transport::Device> device;
  std::string address;    // numeric
  std::string interface;  // its name, for messages
  std::shared_ptr<DeadlineWatch> watch;
};

// Errors: kUnavailable: the address cannot be bound.
absl::StatusOr<std::shared_ptr<GlooDevice>> OpenGlooDevice(const std::string& address,
                                                           const std::string& interface);

// One message in flight. Destroyed before it was waited for, it leaves the mesh unusable, but
// touches its memory no more.
class TcpTransfer {
 public:
  TcpTransfer();  // nothing in flight: waiting for it is done
  ~TcpTransfer();
  TcpTransfer(TcpTransfer&&) noexcept;
  TcpTransfer& operator=(TcpTransfer&&) noexcept;

 private:
  friend class GlooMesh;

  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool sends_ = false;
  int peer_ = -1;
};

struct MeshOptions {
  int rank = 0;
  int size = 1;
  std::string group;
  std::string prefix;  // of its keys in the store: the same on all ranks, used once
  MonoTime deadline;   // for coming together
  std::shared_ptr<AbortSwitch> abort_switch;  // ends it too; null: nothing does
};

// Threads: safe; a TcpTransfer belongs to one thread at a time.
class GlooMesh {
 public:
  // A mesh without connections.
  //
  // Errors: kUnavailable: Gloo has no context to give.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Create(std::shared_ptr<GlooDevice> device,
                                                          std::shared_ptr<Store> store,
                                                          MeshOptions options);
  ~GlooMesh();

  // Connects with those of `peers` that are not connected yet. Each of them does the same with this
  // rank; who comes first waits until `point` is interrupted.
  //
  // Errors: kAborted: `point` was interrupted; kUnavailable: names the rank that cannot be reached,
  //         from which interface, and the choices; the store's.
  // Cost:   per peer two keys in the store and one connection.
  absl::Status Reach(absl::Span<const int> peers, WaitPoint& point);

  // Starts to send `bytes` to (receive from) `peer`, which was reached. Messages meet by `slot`;
  // both sides must name the same size. At 0 bytes nothing is sent. The memory is in use until Wait
  // has returned or the transfer is destroyed.
  //
  // Errors: kUnavailable: the connection is closed.
  absl::StatusOr<TcpTransfer> Send(int peer, uint64_t slot, const void* data, size_t bytes);
  absl::StatusOr<TcpTransfer> Receive(int peer, uint64_t slot, void* data, size_t bytes);
  // Receives from whichever of `peers`, all of them reached, sends first.
  absl::StatusOr<TcpTransfer> ReceiveFromAny(const std::vector<int>& peers, uint64_t slot,
                                             void* data, size_t bytes);

  // Waits until the transfer is done.
  //
  // A peer's end is noticed within kPeerCheck even where Gloo does not tell: it forgets the message
  // that it was in the middle of writing or reading when a connection broke.
  //
  // Errors: kAborted: `point` was interrupted; kUnavailable: the peer has closed the connection.
  absl::Status Wait(TcpTransfer& transfer, WaitPoint& point);

  // Closes every connection; what is in flight and what comes later fails with kUnavailable.
  void Close();

  // Bytes that Send has sent so far.
  int64_t bytes_sent() const { return bytes_sent_; }
  int num_connections() const;

  const std::shared_ptr<GlooDevice>& device() const { return device_; }

 private:
  struct Links;

  GlooMesh(std::shared_ptr<GlooDevice> device, std::shared_ptr<Store> store, MeshOptions options);
  // Those of `peers` that nobody has begun to connect with; from now on this thread has.
  std::vector<int> Claim(absl::Span<const int> peers);
  absl::Status Publish(int peer);
  absl::StatusOr<std::string> AwaitAddress(int peer, WaitPoint& point);
  absl::Status ConnectTo(int peer, WaitPoint& point);
  absl::Status AwaitOthersConnecting(absl::Span<const int> peers, WaitPoint& point);
  absl::Status WatchPeer(int peer);
  absl::Status CheckPeer(int peer);

  const std::shared_ptr<GlooDevice> device_;
  const std::shared_ptr<Store> store_;
  const MeshOptions options_;
  std::unique_ptr<Links> links_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace muster::comm

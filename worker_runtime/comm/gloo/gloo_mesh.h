// The connections of one rank to all others of a group, over Gloo's TCP device. The only file that
// sees Gloo: its exceptions end here.
//
// Of Gloo: the device, pairs, unbound buffers with send, receive and abort of a wait. None of its
// collectives, since they cannot be aborted (README.md of this room).
// Source: gloo/transport/{device,pair,unbound_buffer}.h of Debian's 2022 snapshot.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/deadline_watch.h"

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace muster::comm {

// What the communicators of one process share: one I/O thread on one address, and one watch for
// deadlines.
struct GlooDevice {
  std::shared_ptr<gloo::transport::Device> device;
  std::string address;    // numeric
  std::string interface;  // its name, for messages
  std::shared_ptr<DeadlineWatch> watch;
};

// Errors: kUnavailable: the address cannot be bound.
absl::StatusOr<std::shared_ptr<GlooDevice>> OpenGlooDevice(const std::string& address,
                                                           const std::string& interface);

// Where one thread waits on a mesh, so that another can end its waits.
//
// Threads: safe.
class WaitPoint {
 public:
  // Ends the wait that is under way and every later one, until Reset.
  void Interrupt();
  void Reset();

 private:
  friend class GlooMesh;

  // Ends the wait that is under way, for its thread to look around.
  void Nudge();

  base::Mutex mu_;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  gloo::transport::UnboundBuffer* waited_for_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// One message in flight. Destroyed before it was waited for, it leaves the mesh unusable, but
// touches its memory no more.
class Transfer {
 public:
  Transfer();  // nothing in flight: waiting for it is done
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  int peer() const { return peer_; }

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
};

// Threads: safe; a Transfer belongs to one thread at a time.
class GlooMesh {
 public:
  // Publishes this rank's addresses, waits for the others', and connects to all.
  //
  // Errors: kDeadlineExceeded: names the ranks that did not come; kUnavailable: names the rank that
  //         cannot be reached, from which interface, and the choices.
  // Cost:   one key per rank in the store; n-1 connections per rank.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(std::shared_ptr<GlooDevice> device,
                                                           Store& store, MeshOptions options);
  ~GlooMesh();

  // Starts to send `bytes` to (receive from) `peer`. Messages meet by `slot`; both sides must name
  // the same size. At 0 bytes nothing is sent. The memory is in use until Wait has returned or the
  // transfer is destroyed.
  //
  // Errors: kUnavailable: the connection is closed.
  absl::StatusOr<Transfer> Send(int peer, uint64_t slot, const void* data, size_t bytes);
  absl::StatusOr<Transfer> Receive(int peer, uint64_t slot, void* data, size_t bytes);
  // From whichever other rank sends first.
  absl::StatusOr<Transfer> ReceiveFromAny(uint64_t slot, void* data, size_t bytes);

  // Waits until the transfer is done.
  //
  // A peer's end is noticed within kPeerCheck even where Gloo does not tell: it forgets the message
  // that it was in the middle of writing or reading when a connection broke.
  //
  // Errors: kAborted: `point` was interrupted; kUnavailable: the peer has closed the connection.
  absl::Status Wait(Transfer& transfer, WaitPoint& point);

  // Closes every connection; what is in flight and what comes later fails with kUnavailable.
  void Close();

  // By Send, so far.
  int64_t bytes_sent() const { return bytes_sent_; }

  const std::shared_ptr<GlooDevice>& device() const { return device_; }

 private:
  struct Links;

  GlooMesh(std::shared_ptr<GlooDevice> device, MeshOptions options);
  absl::Status CreatePairs();
  absl::Status Publish(Store& store);
  absl::Status ConnectToPeers(Store& store);
  absl::Status ConnectTo(int peer, const std::string& addresses);
  absl::Status WatchPeers();
  absl::Status CheckPeer(int peer);

  const std::shared_ptr<GlooDevice> device_;
  const MeshOptions options_;
  std::unique_ptr<Links> links_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace muster::comm

// The ways from one rank to the others of its group: memory that both map where they share a
// machine, else a connection, made when it is first needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/gloo/gloo_mesh.h"
#include "worker_runtime/comm/shm/shm_links.h"
#include "worker_runtime/comm/wait_point.h"

namespace muster::comm {

// One message in flight, as TcpTransfer. A default one is done.
class Transfer {
 public:
  Transfer() = default;

  int peer() const { return peer_; }

 private:
  friend class Links;

  int peer_ = -1;
  TcpTransfer tcp_;
  std::unique_ptr<ShmTransfer> shm_;  // null: by connection, or nothing
  // What is to be done with the whole of a receive in parts by connection.
  TakePart take_;
  const uint8_t* landed_ = nullptr;
  size_t bytes_ = 0;
};

// Ranks of a group that share this rank's machine and memory.
struct SharedMembers {
  std::unique_ptr<ShmLinks> links;  // null: none
  std::vector<int> member_of;       // by rank; -1: not by memory
};

// Threads: safe; a Transfer belongs to one thread at a time. See Stream (shm_links.h).
class Links {
 public:
  Links(std::unique_ptr<GlooMesh> mesh, SharedMembers shared)
      : mesh_(std::move(mesh)), shared_(std::move(shared)) {}

  // Connects with those of `peers` that have no way yet, all of which do the same with this rank.
  //
  // Errors: kAborted: `point` was interrupted; GlooMesh::Reach's.
  absl::Status Reach(absl::Span<const int> peers, WaitPoint& point) {
    return mesh_->Reach(PeersByConnection(peers), point);
  }

  // Sends to and receives from peers that were reached. See GlooMesh.
  absl::StatusOr<Transfer> Send(int peer, Stream stream, uint64_t slot, const void* data,
                                size_t bytes);
  absl::StatusOr<Transfer> Receive(int peer, Stream stream, uint64_t slot, void* data,
                                   size_t bytes);
  // Hands what arrives to `take` during Wait, in parts or as a whole. `landing` is memory for the
  // latter, which is untouched in the former case.
  absl::StatusOr<Transfer> ReceiveParts(int peer, Stream stream, uint64_t slot, void* landing,
                                        size_t bytes, TakePart take);
  // Errors: kAborted: `point` was interrupted; kUnavailable: the peer is gone.
  absl::Status Wait(Transfer& transfer, WaitPoint& point);

  // What is in flight and what comes later fails with kUnavailable, here and at the peers.
  void Close();

  int64_t bytes_sent() const { return mesh_->bytes_sent() + bytes_by_memory_; }
  // The bytes of rings that something has come through.
  int64_t ring_bytes() const { return shared_.links == nullptr ? 0 : shared_.links->bytes_used(); }
  const std::shared_ptr<GlooDevice>& device() const { return mesh_->device(); }

  // Whether what `peer` sends comes through memory that both map.
  bool IsShared(int peer) const { return shared_.links != nullptr && shared_.member_of[peer] >= 0; }

 private:
  std::vector<int> PeersByConnection(absl::Span<const int> peers) const;

  const std::unique_ptr<GlooMesh> mesh_;
  const SharedMembers shared_;
  std::atomic<int64_t> bytes_by_memory_ = 0;
};

// Maps the memory of the other `ranks` of this machine, in ascending order and this one among them.
// Two ranks use it if both could map the other's; where that is not allowed, they connect.
//
// Errors: the store's.
absl::StatusOr<SharedMembers> ShareMemory(Store& store, const MeshOptions& options,
                                          const std::vector<int>& ranks);

}  // namespace muster::comm

#include "worker_runtime/comm/gloo/links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::comm {

std::vector<int> Links::PeersByConnection(absl::Span<const int> peers) const {
  std::vector<int> out;
  std::copy_if(peers.begin(), peers.end(), std::back_inserter(out),
               [this](int peer) { return !IsShared(peer); });
  return out;
}

absl::StatusOr<Transfer> Links::Send(int peer, Stream stream, uint64_t slot, const void* data,
                                     size_t bytes) {
  Transfer transfer;
  if (bytes == 0) return transfer;
  transfer.peer_ = peer;
  if (IsShared(peer)) {
    transfer.shm_ = shared_.links->Send(shared_.member_of[peer], stream, slot, data, bytes);
    bytes_by_memory_ += static_cast<int64_t>(bytes);
  } else {
    MUSTER_ASSIGN_OR_RETURN(transfer.tcp_, mesh_->Send(peer, slot, data, bytes));
  }
  return transfer;
}

absl::StatusOr<Transfer> Links::Receive(int peer, Stream stream, uint64_t slot, void* data,
                                        size_t bytes) {
  Transfer transfer;
  if (bytes == 0) return transfer;
  transfer.peer_ = peer;
  if (IsShared(peer)) {
    transfer.shm_ = shared_.links->Receive(shared_.member_of[peer], stream, slot, data, bytes);
  } else {
    MUSTER_ASSIGN_OR_RETURN(transfer.tcp_, mesh_->Receive(peer, slot, data, bytes));
  }
  return transfer;
}

absl::StatusOr<Transfer> Links::ReceiveParts(int peer, Stream stream, uint64_t slot, void* landing,
                                             size_t bytes, TakePart take) {
  if (bytes == 0 || !IsShared(peer)) {
    MUSTER_ASSIGN_OR_RETURN(Transfer transfer, Receive(peer, stream, slot, landing, bytes));
    transfer.take_ = std::move(take);
    transfer.landed_ = static_cast<const uint8_t*>(landing);
    transfer.bytes_ = bytes;
    return transfer;
  }
  Transfer transfer;
  transfer.peer_ = peer;
  transfer.shm_ =
      shared_.links->ReceiveParts(shared_.member_of[peer], stream, slot, bytes, std::move(take));
  return transfer;
}

absl::Status Links::Wait(Transfer& transfer, WaitPoint& point) {
  if (transfer.shm_ == nullptr) {
    MUSTER_RETURN_IF_ERROR(mesh_->Wait(transfer.tcp_, point));
    if (const TakePart take = std::exchange(transfer.take_, nullptr); take != nullptr) {
      take(transfer.landed_, 0, transfer.bytes_);
    }
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(shared_.links->Wait(*transfer.shm_, point));
  transfer.shm_.reset();
  return absl::OkStatus();
}

void Links::Close() {
  mesh_->Close();
  if (shared_.links != nullptr) shared_.links->Close();
}

absl::StatusOr<SharedMembers> ShareMemory(Store& store, const MeshOptions& options,
                                          const std::vector<int>& ranks) {
  SharedMembers shared;
  if (ranks.size() < 2) return shared;
  const auto key = [&](absl::string_view what, int rank) {
    return absl::StrCat(options.prefix, "/memory/", what, rank);
  };
  const int num_members = static_cast<int>(ranks.size());
  const int self =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), options.rank) - ranks.begin());
  // Without memory of its own a rank says so, and its peers connect with it.
  absl::StatusOr<std::unique_ptr<ShmLinks>> links = ShmLinks::Create(self, num_members);
  MUSTER_RETURN_IF_ERROR(
      store.Set(key("at", options.rank), links.ok() ? (*links)->address() : "", options.deadline));
  // One digit per member: whether this rank has mapped that one's.
  std::string mapped(num_members, '0');
  for (int member = 0; member < num_members; ++member) {
    if (member == self) continue;
    MUSTER_ASSIGN_OR_RETURN(const std::string address,
                            store.Wait(key("at", ranks[member]), options.deadline));
    if (links.ok() && (*links)->Attach(member, address).ok()) mapped[member] = '1';
  }
  MUSTER_RETURN_IF_ERROR(store.Set(key("mapped", options.rank), mapped, options.deadline));
  shared.member_of.assign(options.size, -1);
  for (int member = 0; member < num_members; ++member) {
    if (member == self) continue;
    MUSTER_ASSIGN_OR_RETURN(const std::string theirs,
                            store.Wait(key("mapped", ranks[member]), options.deadline));
    const bool is_mutual = theirs.size() == mapped.size() && theirs[self] == '1';
    if (is_mutual && mapped[member] == '1') shared.member_of[ranks[member]] = member;
  }
  if (links.ok()) shared.links = *std::move(links);
  return shared;
}

}  // namespace muster::comm

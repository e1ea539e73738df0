// What PyTorch's TCPStore holds for one round: keys, queues, and who waits for what. Requests in,
// replies out, in PyTorch's own bytes; what each command does: README.md of this folder.
//
// Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "agent/torch_store/request.h"
#include "agent/torch_store/shared_bytes.h"
#include "proto/base/ids.h"

namespace muster::agent {

// One client's connection to the store of one round; never used again.
using StoreConnection = Id<struct StoreConnectionTag, uint64_t>;

// Bytes for one client. A reply with a large value comes in several pieces, in their order.
struct SendToClient {
  StoreConnection to;
  SharedBytes bytes;
  friend bool operator==(const SendToClient&, const SendToClient&) = default;
};
// What it sent is not served: its connection is to be closed. The protocol has no reply for it.
struct CutClient {
  StoreConnection client;
  std::string reason;
  friend bool operator==(const CutClient&, const CutClient&) = default;
};
using TorchReply = std::variant<SendToClient, CutClient>;

// A client that waits for keys, or at a barrier.
struct StoreWait {
  absl::btree_set<std::string> absent;  // those of its keys that nobody has set yet
  std::string barrier;                  // or the key of the barrier; else empty
};

struct TorchStoreLimits {
  size_t bytes_max = size_t{1} << 30;  // of keys, values, queues and waits, for all clients
  size_t reply_bytes_max = size_t{256} << 20;
  // What clients have not taken of their replies: of one, beyond which its requests wait; of all,
  // beyond which the one that has left most is cut.
  size_t unsent_bytes_pause = size_t{4} << 20;
  size_t unsent_bytes_max = size_t{1} << 30;
};

class TorchStore {
 public:
  explicit TorchStore(TorchStoreLimits limits = {}) : limits_(limits) {}

  // Applies one request of `from`, any command but IDENTIFY. Its values are moved from.
  std::vector<TorchReply> Apply(StoreConnection from, TorchRequest& request);

  // Drops the wait of a connection that is gone.
  void Forget(StoreConnection connection) { EndWait(connection); }

  const absl::btree_map<StoreConnection, StoreWait>& waits() const { return waits_; }
  size_t bytes() const { return bytes_; }

  // T1: no client waits for keys that are all there. T2: bytes() is the sum of what is held. T3:
  // each waiting client is found by each key it waits for. Empty if all hold.
  std::string CheckInvariants() const;

 private:
  using Replies = std::vector<TorchReply>;

  absl::Status Set(TorchRequest& request, Replies& out);
  absl::Status CompareSet(StoreConnection from, TorchRequest& request, Replies& out);
  absl::Status Get(StoreConnection from, const TorchRequest& request, Replies& out);
  absl::Status Add(StoreConnection from, const TorchRequest& request, Replies& out);
  absl::Status Wait(StoreConnection from, const TorchRequest& request, Replies& out);
  absl::Status Append(const TorchRequest& request, Replies& out);
  absl::Status MeetBarrier(StoreConnection from, const TorchRequest& request, Replies& out);
  absl::Status PushToQueue(TorchRequest& request, Replies& out);
  void PopFromQueue(StoreConnection from, const std::string& key, Replies& out);
  absl::Status ListKeys(StoreConnection from, Replies& out) const;
  absl::Status Dispatch(StoreConnection from, TorchRequest& request, Replies& out);

  // Holds `value` at `key` within the budget and wakes who waited for it.
  absl::Status Put(const std::string& key, SharedBytes value, Replies& out);
  bool Delete(const std::string& key);
  // One waiter is woken by a push, all by a key.
  void Wake(const std::string& key, size_t count_max, Replies& out);
  void EndWait(StoreConnection connection);
  bool Has(const std::string& key) const;
  absl::Status Reserve(size_t bytes) const;
  absl::StatusOr<int64_t> Sum(const std::string& key, int64_t amount) const;

  TorchStoreLimits limits_;
  absl::btree_map<std::string, SharedBytes> values_;
  absl::btree_map<std::string, std::deque<SharedBytes>> queues_;  // none is empty
  absl::btree_map<StoreConnection, StoreWait> waits_;
  absl::btree_map<std::string, std::vector<StoreConnection>>
      waiters_;  // by absent key, oldest first
  absl::btree_map<std::string, std::vector<StoreConnection>> at_barrier_;  // by key
  size_t bytes_ = 0;
};

}  // namespace muster::agent

// Decides who may be connected to the store, and who is closed when the table of connections fills,
// so that no client keeps the job's own ranks out by taking all of it. The protocol of PyTorch's
// store knows no secret, so a client is told by where it comes from alone.
//
// A client is *of a node* if it comes from an address that a node of the job has named, and is no
// other user's. Anybody else is a *stranger*: served where that is wanted, named once, and the
// first to go.
//
// Pure: same state, event and time give the same answers.
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "agent/torch_store/attendance.h"
#include "agent/torch_store/torch_store.h"
#include "proto/base/mono_time.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// One connection closed, and why.
struct ShownOut {
  StoreConnection connection;
  std::string reason;
  friend bool operator==(const ShownOut&, const ShownOut&) = default;
};

class StoreDoor {
 public:
  // A connection that has asked for nothing for so long is closed while the table, or what its
  // address may have, is more than half full.
  static constexpr absl::Duration kSilence = absl::Seconds(10);

  StoreDoor(int world_size, StoreClients clients) : world_size_(world_size), clients_(clients) {}

  struct Answer {
    std::string refusal;           // why it is not served; empty: it is
    std::string notice;            // of a stranger, the first time; empty: it has been said
    std::vector<ShownOut> closed;  // strangers, in favour of a node's connection
  };
  // `ranks_there`: how many ranks may be behind its address; 0: it is no node's.
  Answer Open(StoreConnection connection, const StoreClient& client, int ranks_there, MonoTime now);
  // The connection has made a whole request, or is known to be a rank's.
  void NoteIsUsed(StoreConnection connection);
  // The connection belongs to a worker of this node; from then on so do others of the same user.
  void NoteIsOurs(StoreConnection connection);
  void Close(StoreConnection connection);

  // Those whose silence is over.
  std::vector<ShownOut> CloseSilent(MonoTime now);
  // Earliest instant at which CloseSilent would say something; InfiniteFuture() if there is none.
  MonoTime NextDeadline() const { return next_look_; }

  // A rank has one or two connections, and one for each copy of its store.
  size_t capacity() const { return 1024 + 64 * static_cast<size_t>(world_size_); }
  size_t size() const { return guests_.size(); }
  // D1: places and guests agree. Empty if it holds.
  std::string CheckInvariants() const;

 private:
  // All that comes from one address, or from one other user of this machine.
  struct Origin {
    bool is_stranger = false;
    size_t limit = 0;
    absl::btree_set<StoreConnection> connections;
    absl::btree_set<StoreConnection> silent;  // of them
  };
  struct Guest {
    std::string origin;
    MonoTime since;
  };

  bool IsOverHalf(size_t count) const { return 2 * count > capacity(); }
  bool IsCrowded(const Origin& origin) const {
    return IsOverHalf(guests_.size()) || 2 * origin.connections.size() > origin.limit;
  }
  std::string RefusalOf(const std::string& name, bool is_stranger, size_t limit) const;
  std::string NoticeOf(const std::string& name);
  // The strangers' origin with most connections; null if there is none.
  const Origin* LargestOfStrangers() const;
  // Those of an origin that are silent and not the second connection of one that talks.
  std::vector<StoreConnection> Surplus(const Origin& origin) const;

  // Constant after construction.
  int world_size_;
  StoreClients clients_;

  absl::btree_map<StoreConnection, Guest> guests_;
  absl::btree_map<std::string, Origin> origins_;  // none is empty
  absl::btree_set<std::string> named_;
  MonoTime next_look_ = MonoTime::InfiniteFuture();
};

}  // namespace muster::agent

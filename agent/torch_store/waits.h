// The waits at the store: who waits for what, and since when.
//
// A wait that is given up and taken up again within kSlicePause is one: PyTorch's barriers wait in
// slices.
//
// Pure.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "agent/torch_store/barriers.h"
#include "agent/torch_store/torch_store.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class Waits {
 public:
  struct Wait {
    bool is_held = false;
    MonoTime since;
    MonoTime cancelled_at;  // the last slice
    std::string awaited;    // a key that was absent; empty once a wait was answered

    // Whether it is held, or between two slices.
    bool GoesOn(MonoTime now) const;
  };
  // Ordered by Wait::since, so that the first has waited for longest.
  using Queue = absl::btree_set<std::pair<MonoTime, StoreConnection>>;

  void Open(StoreConnection connection) { waits_.try_emplace(connection); }
  // Called after each request of `connection`, or a reply to it. `held` is its wait now; null:
  // none. `cancelled`: it gave the last one up.
  void Note(StoreConnection connection, const StoreWait* held, bool cancelled,
            const Barriers& barriers, MonoTime now);
  // What it waited for is no barrier any more.
  void LeaveBarrier(StoreConnection connection);
  void Close(StoreConnection connection);

  // The wait of a connection that is open.
  const Wait& Of(StoreConnection connection) const { return waits_.at(connection); }
  const std::map<StoreConnection, Wait>& all() const { return waits_; }
  const Queue& held() const { return held_; }
  const Queue& at_barrier() const { return at_barrier_; }  // those of them at one

 private:
  std::map<StoreConnection, Wait> waits_;
  Queue held_;
  Queue at_barrier_;
};

}  // namespace muster::agent

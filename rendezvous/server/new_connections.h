// Connections on which no stream has been opened yet. gRPC does not say when a hand-shake fails;
// that no stream follows does.
#pragma once

#include <functional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"
#include "proto/io/loop_mailbox.h"

namespace muster::rendezvous {

// Loop thread only.
class NewConnections {
 public:
  // `on_wasted` is called from the loop, once for each connection that has no stream within
  // `patience` and is not removed; at most two seconds later.
  NewConnections(asio::io_context& loop, absl::Duration patience,
                 std::function<void(const std::string& peer)> on_wasted);
  ~NewConnections() { mailbox_.Close(); }

  void Add(const std::string& peer);
  // A stream has been opened on it.
  void Remove(const std::string& peer) { due_.erase(peer); }

 private:
  void LookOnLoop();

  // Constant after construction.
  const LoopMailbox mailbox_;
  const absl::Duration patience_;
  const std::function<void(const std::string&)> on_wasted_;

  absl::btree_map<std::string, MonoTime> due_;  // the instants at which they count as wasted
  asio::steady_timer timer_;
  bool is_looking_ = false;
};

}  // namespace muster::rendezvous

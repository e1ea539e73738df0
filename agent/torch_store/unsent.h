// What clients have been sent and have not taken yet: a piece that several of them share is counted
// once, since it takes its memory once.
//
// Pure.
#pragma once

#include <cstddef>
#include <deque>

#include "absl/container/btree_map.h"
#include "agent/torch_store/torch_store.h"

namespace muster::agent {

class Unsent {
 public:
  void Add(StoreConnection to, const SharedBytes& piece);
  // The oldest piece of `to` is on its way.
  void Sent(StoreConnection to);
  void Forget(StoreConnection to);

  // Memory that they take.
  size_t bytes() const { return bytes_; }
  // What `to` has not taken, shared or not.
  size_t BytesOf(StoreConnection to) const;
  // The connection that has left most of it. There must be one.
  StoreConnection Slowest() const;

 private:
  struct Queue {
    std::deque<SharedBytes> pieces;
    size_t bytes = 0;
  };

  void Hold(const SharedBytes& piece);
  void Release(const SharedBytes& piece);

  absl::btree_map<StoreConnection, Queue> queues_;  // none is empty
  // Queues that hold a piece; asked, never listed: where it lies in memory decides nothing.
  absl::btree_map<const std::string*, size_t> holders_;
  size_t bytes_ = 0;
};

}  // namespace muster::agent

// A node's store requests that have not been sent, and those that await their answer.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "proto/base/store_messages.h"

namespace muster::proto {
class FromAgent;
class StoreRequest;
}  // namespace muster::proto

namespace muster::rendezvous {

inline constexpr size_t kMaxStoreRequestsInFlight = 4096;
inline constexpr size_t kMaxUnsentStoreBytes = size_t{64} << 20;

class StoreOutbox {
 public:
  StoreOutbox();
  ~StoreOutbox();

  // Errors: kResourceExhausted: too many requests, or too many bytes of them, wait already.
  absl::Status Put(const StoreRequest& request);
  // Fills in the next message. False: there is none.
  bool Next(proto::FromAgent& out);
  // Whether an answer to this request was awaited; it is no more.
  bool TakeAnswered(uint64_t request_id) { return unanswered_.erase(request_id) > 0; }
  // The requests that nobody is going to answer: all of them. None is sent any more.
  absl::btree_set<uint64_t> GiveUp();

 private:
  // Encoded, since most of their memory is that of keys and values.
  std::deque<std::unique_ptr<proto::StoreRequest>> unsent_;
  size_t unsent_bytes_ = 0;
  absl::btree_set<uint64_t> unanswered_;
};

}  // namespace muster::rendezvous

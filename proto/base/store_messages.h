// Requests of workers to the job's store, to the exchange of NCCL unique ids, and for the commit of
// a checkpoint, as plain values. Decoded from proto/store.proto; decided by
// rendezvous/core/store_core.
//
// Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"

namespace muster {

// Sets `key`; overwrites.
struct StoreSet {
  std::string key;
  std::string value;
};
// Answers at once; kNotFound if absent.
struct StoreGet {
  std::string key;
};
// Answers once every key exists, in the order of `keys`; kDeadlineExceeded names the absent ones
// (three at most).
struct StoreWait {
  std::vector<std::string> keys;
  absl::Duration timeout;
};
// Adds to the decimal integer at `key` (0 if absent) and answers the sum. kInvalidArgument if it is
// no integer.
struct StoreAdd {
  std::string key;
  int64_t amount = 0;
};
// Sets `key` to `desired` if it holds `expected` (an empty `expected` also matches an absent key);
// answers the value held afterwards.
struct StoreCompareAndSet {
  std::string key;
  std::string expected;
  std::string desired;
};
// Answers "1" if the key existed, else "0".
struct StoreDelete {
  std::string key;
};

// One collective exchange of an opaque NCCL unique id inside a group of workers. Rank 0 of the
// group passes the id that it has just created; the others wait for it. Each gets it once: an id
// serves one communicator (NCCL's bootstrap root accepts exactly its ranks, then closes).
struct UniqueIdExchange {
  std::string group;
  uint64_t nonce = 0;  // counts the communicators that this group has made in this round
  int group_rank = 0;
  int group_size = 0;
  std::string unique_id;  // from group rank 0 only
  absl::Duration timeout;
};

// May the checkpoint of `step` be published? Asked once all its parts are written, before the
// rename that publishes it. Not a key of the store: the core of the job answers
// (rendezvous/core/checkpoint_commit.h).
//
// Errors: kUnavailable: not now; train on, and ask again at the next checkpoint. kAborted: never;
// the round of the request is over.
struct CommitCheckpoint {
  ServerTerm term;  // the newest that the asker has heard of; 0: none
  int64_t step = 0;
};

using StoreOperation = std::variant<StoreSet, StoreGet, StoreWait, StoreAdd, StoreCompareAndSet,
                                    StoreDelete, UniqueIdExchange, CommitCheckpoint>;

struct StoreRequest {
  // Grows with each request of this agent; a repeated one gets the same answer.
  uint64_t request_id = 0;
  // The scope: keys of one round are never seen in another.
  Round round = kNoRound;
  StoreOperation operation;
  Instance instance;  // the round's; 0 until the worker's agent has added it
};

struct StoreReply {
  uint64_t request_id = 0;
  absl::Status status;
  std::vector<std::string> values;
  friend bool operator==(const StoreReply&, const StoreReply&) = default;
};

// Bounds that keep one job from filling the server; beyond them requests are refused
// (kResourceExhausted).
inline constexpr size_t kMaxStoreKeyBytes = 4096;
inline constexpr size_t kMaxStoreValueBytes = size_t{1} << 20;
inline constexpr size_t kMaxStoreBytesPerJob = size_t{256} << 20;
// The values of one reply together: ask for fewer keys at a time.
inline constexpr size_t kMaxStoreReplyBytes = size_t{16} << 20;

}  // namespace muster

// The key-value store of one job and its exchange of NCCL unique ids. Pure: waits are kept as state
// and answered by effects; deadlines come through NextDeadline().
//
// Threads: compatible; one caller at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"
#include "proto/base/store_messages.h"

namespace muster::rendezvous {

// An answer to one request of one agent.
struct SendStoreReply {
  Incarnation to;
  StoreReply reply;
  friend bool operator==(const SendStoreReply&, const SendStoreReply&) = default;
};

// Answers to changes are remembered, so that a repeated request changes nothing twice; those of
// reads are not, because reading again does no harm.
inline constexpr size_t kMaxRememberedReplies = 256;
inline constexpr size_t kMaxRememberedBytes = size_t{64} << 10;  // per agent
// Requests of all workers of a job that wait at one time, and unique-id exchanges in one round.
inline constexpr size_t kMaxPendingRequests = size_t{1} << 18;
inline constexpr size_t kMaxPendingBytes = size_t{64} << 20;  // of the keys that they name
// The answers that one event may cause, as when a key appears that every node waits for. Waits
// beyond it are refused, because each answer is a copy until its node has read it.
inline constexpr size_t kMaxAnswerBytesPerStep = size_t{256} << 20;
inline constexpr size_t kMaxExchanges = size_t{1} << 14;

class StoreCore {
 public:
  // Starts `round`: keys of earlier rounds are dropped and their pending waits answered with
  // kAborted.
  std::vector<SendStoreReply> StartRound(Round round, MonoTime now);

  // Applies one request. A request of another round than the current is answered with kAborted and
  // changes nothing; one that this agent sent before gets the same answer again.
  //
  // Errors (in the reply): kNotFound (also compare-and-set of an absent key), kInvalidArgument,
  // kDeadlineExceeded, kAborted, kAlreadyExists (a unique id that this rank has already taken or
  // published), kResourceExhausted (limits of store_messages.h and of this file),
  // kFailedPrecondition (a repeated request so old that its answer is no longer remembered).
  std::vector<SendStoreReply> Step(Incarnation from, const StoreRequest& request, MonoTime now);

  // Answers the waits whose time is over, naming what was missing.
  std::vector<SendStoreReply> Tick(MonoTime now);

  // Drops an agent that will not come back: its pending waits and remembered replies.
  void Forget(Incarnation agent);

  MonoTime NextDeadline() const;

  // S1: no pending wait whose keys all exist. S2: bytes_ and pending_bytes_ are what is held, and
  // within their limits. S3: no unique id is held for a group whose every member has it. S4: every
  // pending request is found by its deadline, and by the key or the group it waits for. Empty if
  // all hold.
  std::string CheckInvariants() const;

 private:
  using Replies = std::vector<SendStoreReply>;
  using Values = std::vector<std::string>;
  struct GroupKey {
    std::string group;
    uint64_t nonce = 0;
    friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
    friend bool operator==(const GroupKey&, const GroupKey&) = default;
  };
  // A request that is answered later.
  struct Pending {
    Incarnation from;
    uint64_t request_id = 0;
    MonoTime deadline;
    absl::Duration timeout;
    std::vector<std::string> keys;  // of a StoreWait
    std::string waits_for;          // the first of `keys` that is absent
    std::optional<GroupKey> group;  // of a UniqueIdExchange
    int group_rank = 0;
    size_t bytes() const;  // of the names in it
  };
  struct Exchange {
    int group_size = 0;
    std::string unique_id;  // empty until rank 0 publishes, and after everyone has it
    bool is_published = false;
    absl::btree_set<int> taken;              // group ranks that have been answered
    absl::btree_map<int, uint64_t> waiting;  // group rank -> pending_
  };
  struct Remembered {
    absl::btree_map<uint64_t, StoreReply> replies;  // by request id
    size_t bytes = 0;
    uint64_t forgotten_up_to = 0;  // newest request whose reply has been dropped
  };

  void Apply(Incarnation from, uint64_t id, const StoreSet& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const StoreGet& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const StoreWait& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const StoreAdd& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const StoreCompareAndSet& op, MonoTime now,
             Replies& out);
  void Apply(Incarnation from, uint64_t id, const StoreDelete& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const UniqueIdExchange& op, MonoTime now, Replies& out);
  void Apply(Incarnation from, uint64_t id, const CommitCheckpoint& op, MonoTime now, Replies& out);

  // Sets a key within the limits, and answers who waited for it.
  absl::Status Put(const std::string& key, std::string value, Replies& out);
  void WakeWaiters(const std::string& key, Replies& out);
  const std::string* FindAbsent(const std::vector<std::string>& keys) const;
  // The values of keys that all exist.
  //
  // Errors: kResourceExhausted: more than one reply may hold.
  absl::StatusOr<Values> Collect(const std::vector<std::string>& keys) const;
  absl::StatusOr<Exchange*> FindExchange(const UniqueIdExchange& op);
  // Gives the id to one rank; drops it when every rank has it.
  void Hand(Exchange& exchange, int group_rank, Incarnation to, uint64_t id, Replies& out);

  void Park(Pending pending, Replies& out);
  Pending Unpark(uint64_t pending);
  std::string TimeoutText(const Pending& pending) const;

  void Answer(Incarnation to, uint64_t id, absl::StatusOr<Values> result, Replies& out) const;
  void AnswerAndRemember(Incarnation to, uint64_t id, absl::StatusOr<Values> result, Replies& out);

  Round round_ = kNoRound;
  absl::btree_map<std::string, std::string> values_;
  size_t bytes_ = 0;  // of keys and values
  absl::btree_map<GroupKey, Exchange> exchanges_;
  absl::btree_map<Incarnation, Remembered> remembered_;

  uint64_t next_pending_ = 0;
  absl::btree_map<uint64_t, Pending> pending_;
  size_t pending_bytes_ = 0;                                         // of the keys that they name
  absl::btree_map<std::string, absl::btree_set<uint64_t>> waiters_;  // by Pending::waits_for
  absl::btree_set<std::pair<MonoTime, uint64_t>> deadlines_;
  absl::btree_set<std::pair<Incarnation, uint64_t>> pending_requests_;  // (agent, request id)
};

}  // namespace muster::rendezvous

#include "rendezvous/core/store_core.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

constexpr int kMaxKeysNamed = 3;

bool IsRead(const StoreOperation& operation) {
  return std::holds_alternative<StoreGet>(operation) ||
         std::holds_alternative<StoreWait>(operation);
}

size_t BytesOf(const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

absl::Status CheckKey(const std::string& key) {
  if (key.empty()) return absl::InvalidArgumentError("a store key is empty");
  if (key.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a store key has ", key.size(), " bytes; the limit is ", kMaxStoreKeyBytes));
}

absl::Status CheckValue(const std::string& key, const std::string& value) {
  if (value.size() <= kMaxStoreValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the value of store key '", key, "' has ",
                                                   value.size(), " bytes; the limit is ",
                                                   kMaxStoreValueBytes));
}

absl::Status CheckExchange(const UniqueIdExchange& op) {
  const std::string group = absl::StrCat("group '", op.group, "' (nonce ", op.nonce, ")");
  if (op.group_size < 1 || op.group_rank < 0 || op.group_rank >= op.group_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", op.group_rank, " is not in ", group,
                                                   " of ", op.group_size, " ranks"));
  }
  if ((op.group_rank == 0) == op.unique_id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unique id of ", group, " comes from rank 0 and from no other; rank ",
                     op.group_rank, op.unique_id.empty() ? " passed none" : " passed one"));
  }
  MUSTER_RETURN_IF_ERROR(CheckKey(op.group));
  if (op.unique_id.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the unique id of ", group, " has ",
                                                   op.unique_id.size(), " bytes; the limit is ",
                                                   kMaxStoreKeyBytes));
}

}  // namespace

size_t StoreCore::Pending::bytes() const {
  return BytesOf(keys) + (group ? group->group.size() : 0);
}

std::vector<SendStoreReply> StoreCore::StartRound(Round round, MonoTime) {
  Replies out;
  for (const auto& [unused, pending] : pending_) {
    Answer(pending.from, pending.request_id,
           absl::AbortedError(absl::StrCat("round ", ToString(round_), " is over; round ",
                                           ToString(round), " has begun")),
           out);
  }
  pending_.clear();
  pending_bytes_ = 0;
  waiters_.clear();
  deadlines_.clear();
  pending_requests_.clear();
  values_.clear();
  bytes_ = 0;
  exchanges_.clear();
  round_ = round;
  return out;
}

std::vector<SendStoreReply> StoreCore::Step(Incarnation from, const StoreRequest& request,
                                            MonoTime now) {
  Replies out;
  const uint64_t id = request.request_id;
  if (request.round != round_) {
    Answer(from, id,
           absl::AbortedError(absl::StrCat("the request is of round ", ToString(request.round),
                                           "; the current one is ", ToString(round_))),
           out);
    return out;
  }
  if (pending_requests_.contains({from, id})) return out;
  const auto remembered = remembered_.find(from);
  if (remembered != remembered_.end() && !IsRead(request.operation)) {
    const auto reply = remembered->second.replies.find(id);
    if (reply != remembered->second.replies.end()) {
      out.push_back({from, reply->second});
      return out;
    }
    if (id <= remembered->second.forgotten_up_to) {
      Answer(from, id,
             absl::FailedPreconditionError(
                 absl::StrCat("store request ", id, " is too old to be repeated")),
             out);
      return out;
    }
  }
  std::visit([&](const auto& operation) { Apply(from, id, operation, now, out); },
             request.operation);
  return out;
}

std::vector<SendStoreReply> StoreCore::Tick(MonoTime now) {
  Replies out;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    const absl::Status status = absl::DeadlineExceededError(TimeoutText(pending_.at(id)));
    const Pending pending = Unpark(id);
    Answer(pending.from, pending.request_id, status, out);
  }
  return out;
}

void StoreCore::Forget(Incarnation agent) {
  remembered_.erase(agent);
  std::vector<uint64_t> gone;
  for (const auto& [id, pending] : pending_) {
    if (pending.from == agent) gone.push_back(id);
  }
  for (const uint64_t id : gone) Unpark(id);
}

MonoTime StoreCore::NextDeadline() const {
  return deadlines_.empty() ? MonoTime::InfiniteFuture() : deadlines_.begin()->first;
}

// --- Operations

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreSet& op, MonoTime, Replies& out) {
  const absl::Status status = Put(op.key, op.value, out);
  AnswerAndRemember(from, id, status.ok() ? absl::StatusOr<Values>(Values{}) : status, out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreGet& op, MonoTime, Replies& out) {
  const auto found = values_.find(op.key);
  if (found == values_.end()) {
    Answer(from, id, absl::NotFoundError(absl::StrCat("store key '", op.key, "' is absent")), out);
  } else {
    Answer(from, id, Values{found->second}, out);
  }
}

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreWait& op, MonoTime now,
                      Replies& out) {
  const std::string* absent = FindAbsent(op.keys);
  if (absent == nullptr) {
    Answer(from, id, Collect(op.keys), out);
    return;
  }
  for (const std::string& key : op.keys) {
    if (const absl::Status status = CheckKey(key); !status.ok()) {
      Answer(from, id, status, out);
      return;
    }
  }
  Park({.from = from,
        .request_id = id,
        .deadline = now + op.timeout,
        .timeout = op.timeout,
        .keys = op.keys,
        .waits_for = *absent},
       out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreAdd& op, MonoTime, Replies& out) {
  const auto found = values_.find(op.key);
  int64_t value = 0;
  if (found != values_.end() && !absl::SimpleAtoi(found->second, &value)) {
    AnswerAndRemember(from, id,
                      absl::InvalidArgumentError(
                          absl::StrCat("store key '", op.key, "' holds no integer to add to")),
                      out);
    return;
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(value, op.amount, &sum)) {
    AnswerAndRemember(from, id,
                      absl::InvalidArgumentError(absl::StrCat(
                          "adding ", op.amount, " to store key '", op.key, "' overflows")),
                      out);
    return;
  }
  const absl::Status status = Put(op.key, absl::StrCat(sum), out);
  AnswerAndRemember(from, id,
                    status.ok() ? absl::StatusOr<Values>(Values{absl::StrCat(sum)}) : status, out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreCompareAndSet& op, MonoTime,
                      Replies& out) {
  const auto found = values_.find(op.key);
  const bool exists = found != values_.end();
  const bool matches = exists ? found->second == op.expected : op.expected.empty();
  absl::StatusOr<Values> result = Values{};
  if (matches) {
    const absl::Status status = Put(op.key, op.desired, out);
    if (status.ok()) {
      result = Values{op.desired};
    } else {
      result = status;
    }
  } else if (exists) {
    result = Values{found->second};
  } else {
    result = absl::NotFoundError(absl::StrCat("store key '", op.key, "' is absent"));
  }
  AnswerAndRemember(from, id, std::move(result), out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const StoreDelete& op, MonoTime,
                      Replies& out) {
  const auto found = values_.find(op.key);
  const bool existed = found != values_.end();
  if (existed) {
    bytes_ -= found->first.size() + found->second.size();
    values_.erase(found);
  }
  AnswerAndRemember(from, id, Values{existed ? "1" : "0"}, out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const UniqueIdExchange& op, MonoTime now,
                      Replies& out) {
  const absl::StatusOr<Exchange*> found = FindExchange(op);
  if (!found.ok()) {
    AnswerAndRemember(from, id, found.status(), out);
    return;
  }
  Exchange& exchange = **found;
  if (op.group_rank == 0) {
    exchange.unique_id = op.unique_id;
    exchange.is_published = true;
    Hand(exchange, 0, from, id, out);
    while (!exchange.waiting.empty()) {
      const auto [rank, pending_id] = *exchange.waiting.begin();
      const Pending pending = Unpark(pending_id);
      Hand(exchange, rank, pending.from, pending.request_id, out);
    }
    return;
  }
  if (exchange.is_published) {
    Hand(exchange, op.group_rank, from, id, out);
    return;
  }
  Park({.from = from,
        .request_id = id,
        .deadline = now + op.timeout,
        .timeout = op.timeout,
        .group = GroupKey{op.group, op.nonce},
        .group_rank = op.group_rank},
       out);
}

void StoreCore::Apply(Incarnation from, uint64_t id, const CommitCheckpoint&, MonoTime,
                      Replies& out) {
  Answer(from, id,
         absl::InvalidArgumentError("a checkpoint is committed by the job, not by its store"), out);
}

absl::StatusOr<StoreCore::Exchange*> StoreCore::FindExchange(const UniqueIdExchange& op) {
  MUSTER_RETURN_IF_ERROR(CheckExchange(op));
  const std::string group = absl::StrCat("group '", op.group, "' (nonce ", op.nonce, ")");
  const GroupKey key{op.group, op.nonce};
  auto found = exchanges_.find(key);
  if (found == exchanges_.end()) {
    if (exchanges_.size() == kMaxExchanges) {
      return absl::ResourceExhaustedError(absl::StrCat("round ", ToString(round_), " has had its ",
                                                       kMaxExchanges, " unique-id exchanges"));
    }
    found = exchanges_.emplace(key, Exchange{.group_size = op.group_size}).first;
  }
  Exchange& exchange = found->second;
  if (exchange.group_size != op.group_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", op.group_rank, " says that ", group, " has ", op.group_size,
                     " ranks, but another rank said ", exchange.group_size));
  }
  if (exchange.taken.contains(op.group_rank) || exchange.waiting.contains(op.group_rank)) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", op.group_rank, " of ", group,
                     " has already asked for its unique id; each communicator needs a new nonce"));
  }
  return &exchange;
}

void StoreCore::Hand(Exchange& exchange, int group_rank, Incarnation to, uint64_t id,
                     Replies& out) {
  exchange.taken.insert(group_rank);
  AnswerAndRemember(to, id, Values{exchange.unique_id}, out);
  if (static_cast<int>(exchange.taken.size()) == exchange.group_size) exchange.unique_id.clear();
}

// --- Keys

absl::Status StoreCore::Put(const std::string& key, std::string value, Replies& out) {
  MUSTER_RETURN_IF_ERROR(CheckKey(key));
  MUSTER_RETURN_IF_ERROR(CheckValue(key, value));
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > kMaxStoreBytesPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("the store of this job is full: ", after,
                                                     " bytes with key '", key, "'; the limit is ",
                                                     kMaxStoreBytesPerJob));
  }
  bytes_ = after;
  values_[key] = std::move(value);
  if (before == 0) WakeWaiters(key, out);
  return absl::OkStatus();
}

void StoreCore::WakeWaiters(const std::string& key, Replies& out) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const absl::btree_set<uint64_t> woken = found->second;
  size_t answered = 0;
  for (const uint64_t id : woken) {
    Pending pending = Unpark(id);
    if (const std::string* absent = FindAbsent(pending.keys)) {
      pending.waits_for = *absent;
      Park(std::move(pending), out);
      continue;
    }
    absl::StatusOr<Values> values = Collect(pending.keys);
    if (values.ok()) answered += BytesOf(*values);
    if (answered > kMaxAnswerBytesPerStep) {
      values = absl::ResourceExhaustedError(
          absl::StrCat("store key '", key, "' answers waits with more than ",
                       kMaxAnswerBytesPerStep, " bytes at once; let fewer ranks wait for it"));
    }
    Answer(pending.from, pending.request_id, std::move(values), out);
  }
}

absl::StatusOr<StoreCore::Values> StoreCore::Collect(const std::vector<std::string>& keys) const {
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += values_.at(key).size();
  if (bytes > kMaxStoreReplyBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the values of these ", keys.size(), " keys have ", bytes, " bytes together; one answer ",
        "holds ", kMaxStoreReplyBytes, " at most: wait for fewer keys at a time"));
  }
  Values values;
  for (const std::string& key : keys) values.push_back(values_.at(key));
  return values;
}

const std::string* StoreCore::FindAbsent(const std::vector<std::string>& keys) const {
  const auto absent = std::find_if(keys.begin(), keys.end(),
                                   [&](const std::string& key) { return !values_.contains(key); });
  return absent == keys.end() ? nullptr : &*absent;
}

// --- Requests that wait

void StoreCore::Park(Pending pending, Replies& out) {
  const size_t bytes = pending.bytes();
  if (pending_bytes_ + bytes > kMaxPendingBytes) {
    Answer(pending.from, pending.request_id,
           absl::ResourceExhaustedError(
               absl::StrCat("the requests of this job that wait at the store name keys of ",
                            pending_bytes_, " bytes already; the limit is ", kMaxPendingBytes)),
           out);
    return;
  }
  if (pending_.size() == kMaxPendingRequests) {
    Answer(pending.from, pending.request_id,
           absl::ResourceExhaustedError(absl::StrCat(
               kMaxPendingRequests, " requests of this job wait at the store already")),
           out);
    return;
  }
  pending_bytes_ += bytes;
  const uint64_t id = next_pending_++;
  if (pending.group) {
    exchanges_.at(*pending.group).waiting[pending.group_rank] = id;
  } else {
    waiters_[pending.waits_for].insert(id);
  }
  deadlines_.insert({pending.deadline, id});
  pending_requests_.insert({pending.from, pending.request_id});
  pending_.emplace(id, std::move(pending));
}

StoreCore::Pending StoreCore::Unpark(uint64_t id) {
  const auto found = pending_.find(id);
  Pending pending = std::move(found->second);
  pending_bytes_ -= pending.bytes();
  pending_.erase(found);
  deadlines_.erase({pending.deadline, id});
  pending_requests_.erase({pending.from, pending.request_id});
  if (pending.group) {
    exchanges_.at(*pending.group).waiting.erase(pending.group_rank);
    return pending;
  }
  const auto waiters = waiters_.find(pending.waits_for);
  waiters->second.erase(id);
  if (waiters->second.empty()) waiters_.erase(waiters);
  return pending;
}

std::string StoreCore::TimeoutText(const Pending& pending) const {
  const std::string timeout = InWords(pending.timeout);
  if (pending.group) {
    return absl::StrCat("rank ", pending.group_rank, " of group '", pending.group->group,
                        "' (nonce ", pending.group->nonce, ") waited ", timeout,
                        " for the unique id; rank 0 has not published it");
  }
  std::vector<std::string> absent;
  int count = 0;
  for (const std::string& key : pending.keys) {
    if (values_.contains(key)) continue;
    if (++count <= kMaxKeysNamed) absent.push_back(absl::StrCat("'", key, "'"));
  }
  return absl::StrCat("store ", count == 1 ? "key " : "keys ", NamesInWords(absent, count),
                      " did not appear within ", timeout);
}

// --- Answers

void StoreCore::Answer(Incarnation to, uint64_t id, absl::StatusOr<Values> result,
                       Replies& out) const {
  StoreReply reply{.request_id = id, .status = result.status()};
  if (result.ok()) reply.values = *std::move(result);
  out.push_back({to, std::move(reply)});
}

void StoreCore::AnswerAndRemember(Incarnation to, uint64_t id, absl::StatusOr<Values> result,
                                  Replies& out) {
  Answer(to, id, std::move(result), out);
  const auto size = [](const StoreReply& reply) {
    return BytesOf(reply.values) + reply.status.message().size();
  };
  Remembered& remembered = remembered_[to];
  const StoreReply& reply = out.back().reply;
  remembered.bytes += size(reply);
  remembered.replies[id] = reply;
  while (remembered.replies.size() > kMaxRememberedReplies ||
         remembered.bytes > kMaxRememberedBytes) {
    const auto oldest = remembered.replies.begin();
    remembered.bytes -= size(oldest->second);
    remembered.forgotten_up_to = std::max(remembered.forgotten_up_to, oldest->first);
    remembered.replies.erase(oldest);
  }
}

// --- Invariants

std::string StoreCore::CheckInvariants() const {
  size_t bytes = 0;
  for (const auto& [key, value] : values_) bytes += key.size() + value.size();
  if (bytes != bytes_ || bytes_ > kMaxStoreBytesPerJob) return absl::StrCat("S2: ", bytes_);
  size_t pending_bytes = 0;
  for (const auto& [unused, pending] : pending_) pending_bytes += pending.bytes();
  if (pending_bytes != pending_bytes_ || pending_bytes_ > kMaxPendingBytes) {
    return absl::StrCat("S2: ", pending_bytes_, " bytes pending");
  }
  for (const auto& [key, exchange] : exchanges_) {
    if (static_cast<int>(exchange.taken.size()) == exchange.group_size &&
        !exchange.unique_id.empty()) {
      return absl::StrCat("S3: the id of group '", key.group, "' is still held");
    }
  }
  if (deadlines_.size() != pending_.size() || pending_requests_.size() != pending_.size()) {
    return "S4: indices of another size than what is pending";
  }
  for (const auto& [id, pending] : pending_) {
    if (!pending.group && FindAbsent(pending.keys) == nullptr) return "S1: a wait is overdue";
    const bool is_found =
        deadlines_.contains({pending.deadline, id}) &&
        (pending.group ? exchanges_.at(*pending.group).waiting.contains(pending.group_rank)
                       : waiters_.contains(pending.waits_for));
    if (!is_found) return absl::StrCat("S4: request ", pending.request_id, " would not be found");
  }
  return "";
}

}  // namespace muster::rendezvous

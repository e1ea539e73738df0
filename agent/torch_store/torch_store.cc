#include "agent/torch_store/torch_store.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

// Answers of one byte. Source: README.md, "Replies".
constexpr char kReady = 0, kNotReady = 1;
constexpr char kStopWaiting = 0, kWaitCanceled = 1;

constexpr size_t kEntryBytes = 64;  // of an entry, besides its bytes
constexpr size_t kAllWaiters = std::numeric_limits<size_t>::max();

template <typename T>
void AppendNumber(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendText(std::string& out, const std::string& text) {
  AppendNumber<uint64_t>(out, text.size());
  out.append(text);
}

template <typename T>
std::string Number(T value) {
  std::string out;
  AppendNumber(out, value);
  return out;
}

size_t SizeOf(const std::string& key, const SharedBytes& value) {
  return key.size() + value.size() + kEntryBytes;
}

// What one or more clients are to be sent: small texts are copied into one piece, large ones are
// shared with their holders.
class Pieces {
 public:
  explicit Pieces(std::string begin = "") : small_(std::move(begin)) {}

  Pieces& Add(const SharedBytes& text) {
    AppendNumber<uint64_t>(small_, text.size());
    if (text.size() < kSharedFrom) {
      small_.append(text.text());
    } else {
      EndSmall();
      pieces_.push_back(text);
    }
    return *this;
  }
  void SendTo(StoreConnection to, std::vector<TorchReply>& out) {
    EndSmall();
    for (const SharedBytes& piece : pieces_) out.push_back(SendToClient{to, piece});
  }

 private:
  static constexpr size_t kSharedFrom = 4096;

  void EndSmall() {
    if (!small_.empty()) pieces_.push_back(std::exchange(small_, {}));
  }

  std::string small_;
  std::vector<SharedBytes> pieces_;
};

size_t SizeOf(const StoreWait& wait) {
  size_t bytes = kEntryBytes + wait.barrier.size();
  for (const std::string& key : wait.absent) bytes += key.size() + kEntryBytes;
  return bytes;
}

void Remove(absl::btree_map<std::string, std::vector<StoreConnection>>& index,
            const std::string& key, StoreConnection connection) {
  const auto found = index.find(key);
  if (found == index.end()) return;
  std::vector<StoreConnection>& list = found->second;
  list.erase(std::remove(list.begin(), list.end(), connection), list.end());
  if (list.empty()) index.erase(found);
}

}  // namespace

std::vector<TorchReply> TorchStore::Apply(StoreConnection from, TorchRequest& request) {
  Replies out;
  if (const absl::Status status = Dispatch(from, request, out); !status.ok()) {
    out.push_back(CutClient{from, std::string(status.message())});
  }
  return out;
}

absl::Status TorchStore::Dispatch(StoreConnection from, TorchRequest& request, Replies& out) {
  const auto send = [&](std::string bytes) { out.push_back(SendToClient{from, std::move(bytes)}); };
  switch (request.command) {
    case StoreCommand::kSet:
    case StoreCommand::kMultiSet:
      return Set(request, out);
    case StoreCommand::kCompareSet:
      return CompareSet(from, request, out);
    case StoreCommand::kGet:
    case StoreCommand::kMultiGet:
      return Get(from, request, out);
    case StoreCommand::kAdd:
      return Add(from, request, out);
    case StoreCommand::kCheck: {
      const bool all = std::all_of(request.keys.begin(), request.keys.end(),
                                   [this](const std::string& key) { return Has(key); });
      send(std::string(1, all ? kReady : kNotReady));
      return absl::OkStatus();
    }
    case StoreCommand::kWait:
      return Wait(from, request, out);
    case StoreCommand::kCancelWait:
      EndWait(from);
      send(std::string(1, kWaitCanceled));
      return absl::OkStatus();
    case StoreCommand::kGetNumKeys:
      send(Number<int64_t>(values_.size()));
      return absl::OkStatus();
    case StoreCommand::kDeleteKey:
      send(Number<int64_t>(Delete(request.keys[0]) ? 1 : 0));
      return absl::OkStatus();
    case StoreCommand::kAppend:
      return Append(request, out);
    case StoreCommand::kPing:
      send(Number<uint32_t>(request.numbers[0]));
      return absl::OkStatus();
    case StoreCommand::kQueuePush:
      return PushToQueue(request, out);
    case StoreCommand::kQueuePop:
      PopFromQueue(from, request.keys[0], out);
      return absl::OkStatus();
    case StoreCommand::kQueueLen: {
      const auto queue = queues_.find(request.keys[0]);
      send(Number<int64_t>(queue == queues_.end() ? 0 : queue->second.size()));
      return absl::OkStatus();
    }
    case StoreCommand::kListKeys:
      return ListKeys(from, out);
    case StoreCommand::kBarrier:
      return MeetBarrier(from, request, out);
    case StoreCommand::kIdentify:
      break;  // not the store's
  }
  return absl::InternalError(absl::StrCat(NameOf(request.command), " reached the store"));
}

// --- Keys

// One value for each key.
absl::Status TorchStore::Set(TorchRequest& request, Replies& out) {
  for (size_t i = 0; i < request.keys.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(Put(request.keys[i], std::move(request.values[i]), out));
  }
  return absl::OkStatus();
}

// PyTorch says of an absent key that was expected to hold something that it holds just that.
absl::Status TorchStore::CompareSet(StoreConnection from, TorchRequest& request, Replies& out) {
  const std::string& key = request.keys[0];
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  const std::string& expected = request.values[0];
  SharedBytes held = exists ? found->second : SharedBytes(expected);
  if (exists ? held.text() == expected : expected.empty()) {
    held = std::move(request.values[1]);
    MUSTER_RETURN_IF_ERROR(Put(key, held, out));
  }
  Pieces().Add(held).SendTo(from, out);
  return absl::OkStatus();
}

// Clients wait before they get, so an absent key is one that was deleted since: empty.
absl::Status TorchStore::Get(StoreConnection from, const TorchRequest& request, Replies& out) {
  size_t bytes = 0;
  std::vector<SharedBytes> values;
  for (const std::string& key : request.keys) {
    const auto found = values_.find(key);
    values.push_back(found == values_.end() ? SharedBytes() : found->second);
    bytes += sizeof(uint64_t) + values.back().size();
  }
  if (bytes > limits_.reply_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(NameOf(request.command), " asks for ", bytes,
                                                     " bytes; the limit is ",
                                                     limits_.reply_bytes_max));
  }
  Pieces reply;
  for (const SharedBytes& value : values) reply.Add(value);
  reply.SendTo(from, out);
  return absl::OkStatus();
}

absl::Status TorchStore::Add(StoreConnection from, const TorchRequest& request, Replies& out) {
  MUSTER_ASSIGN_OR_RETURN(const int64_t sum, Sum(request.keys[0], request.numbers[0]));
  MUSTER_RETURN_IF_ERROR(Put(request.keys[0], absl::StrCat(sum), out));
  out.push_back(SendToClient{from, Number<int64_t>(sum)});
  return absl::OkStatus();
}

// As PyTorch reads them, numbers are in decimal and may be followed by anything.
absl::StatusOr<int64_t> TorchStore::Sum(const std::string& key, int64_t amount) const {
  const auto found = values_.find(key);
  int64_t sum = 0;
  if (found == values_.end()) return amount;
  absl::string_view text = absl::StripLeadingAsciiWhitespace(found->second.text());
  absl::ConsumePrefix(&text, "+");
  int64_t held = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), held);
  if (error != std::errc()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it adds to key '", absl::CHexEscape(key), "', which holds no number"));
  }
  if (__builtin_add_overflow(held, amount, &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("adding ", amount, " to key '", absl::CHexEscape(key), "' overflows"));
  }
  return sum;
}

absl::Status TorchStore::Append(const TorchRequest& request, Replies& out) {
  const auto found = values_.find(request.keys[0]);
  const std::string& tail = request.values[0];
  if (found != values_.end() && found->second.size() + tail.size() > kMaxTorchValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("key '", absl::CHexEscape(request.keys[0]),
                                                     "' grows beyond ", kMaxTorchValueBytes,
                                                     " bytes"));
  }
  return Put(request.keys[0],
             found == values_.end() ? tail : absl::StrCat(found->second.text(), tail), out);
}

absl::Status TorchStore::ListKeys(StoreConnection from, Replies& out) const {
  std::string reply = Number<int64_t>(values_.size());
  for (const auto& [key, value] : values_) {
    AppendText(reply, key);
    if (reply.size() > limits_.reply_bytes_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a list of ", values_.size(), " keys has more than ", limits_.reply_bytes_max, " bytes"));
    }
  }
  out.push_back(SendToClient{from, std::move(reply)});
  return absl::OkStatus();
}

absl::Status TorchStore::Put(const std::string& key, SharedBytes value, Replies& out) {
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  const size_t freed = exists ? SizeOf(key, found->second) : 0;
  const size_t taken = SizeOf(key, value);
  if (taken > freed) MUSTER_RETURN_IF_ERROR(Reserve(taken - freed));
  bytes_ = bytes_ - freed + taken;
  values_[key] = std::move(value);
  Wake(key, kAllWaiters, out);
  return absl::OkStatus();
}

bool TorchStore::Delete(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= SizeOf(key, found->second);
  values_.erase(found);
  return true;
}

// --- Queues

// A push wakes one waiter: the one that came first.
absl::Status TorchStore::PushToQueue(TorchRequest& request, Replies& out) {
  const std::string& key = request.keys[0];
  SharedBytes value = std::move(request.values[0]);
  const size_t bytes = SizeOf(key, value);
  MUSTER_RETURN_IF_ERROR(Reserve(bytes));
  bytes_ += bytes;
  queues_[key].push_back(std::move(value));
  Wake(key, 1, out);
  return absl::OkStatus();
}

void TorchStore::PopFromQueue(StoreConnection from, const std::string& key, Replies& out) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) {
    out.push_back(SendToClient{from, Number<int64_t>(0)});
    return;
  }
  Pieces reply(Number<int64_t>(found->second.size()));
  reply.Add(found->second.front());
  bytes_ -= SizeOf(key, found->second.front());
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
  reply.SendTo(from, out);
}

// --- Waiting

bool TorchStore::Has(const std::string& key) const {
  return values_.contains(key) || queues_.contains(key);
}

absl::Status TorchStore::Wait(StoreConnection from, const TorchRequest& request, Replies& out) {
  EndWait(from);  // a client of PyTorch 1 whose wait timed out does not cancel it
  StoreWait wait;
  for (const std::string& key : request.keys) {
    if (!Has(key)) wait.absent.insert(key);
  }
  if (wait.absent.empty()) {
    out.push_back(SendToClient{from, std::string(1, kStopWaiting)});
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(Reserve(SizeOf(wait)));
  bytes_ += SizeOf(wait);
  for (const std::string& key : wait.absent) waiters_[key].push_back(from);
  waits_.emplace(from, std::move(wait));
  return absl::OkStatus();
}

// The counter is an ordinary key, as in PyTorch; it is not reset.
absl::Status TorchStore::MeetBarrier(StoreConnection from, const TorchRequest& request,
                                     Replies& out) {
  const std::string& key = request.keys[0];
  MUSTER_ASSIGN_OR_RETURN(const int64_t count, Sum(key, 1));
  MUSTER_RETURN_IF_ERROR(Put(key, absl::StrCat(count), out));
  EndWait(from);
  if (count < request.numbers[0]) {
    StoreWait wait{.barrier = key};
    MUSTER_RETURN_IF_ERROR(Reserve(SizeOf(wait)));
    bytes_ += SizeOf(wait);
    waits_.emplace(from, std::move(wait));
    at_barrier_[key].push_back(from);
    return absl::OkStatus();
  }
  out.push_back(SendToClient{from, std::string(1, kStopWaiting)});
  const auto waiting = at_barrier_.find(key);
  if (waiting == at_barrier_.end()) return absl::OkStatus();
  const std::vector<StoreConnection> woken = waiting->second;
  for (const StoreConnection connection : woken) {
    EndWait(connection);
    out.push_back(SendToClient{connection, std::string(1, kStopWaiting)});
  }
  return absl::OkStatus();
}

void TorchStore::Wake(const std::string& key, size_t count_max, Replies& out) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  std::vector<StoreConnection>& list = found->second;
  const auto end = list.begin() + std::min(count_max, list.size());
  const std::vector<StoreConnection> woken(list.begin(), end);
  list.erase(list.begin(), end);
  if (list.empty()) waiters_.erase(found);
  for (const StoreConnection connection : woken) {
    const auto wait = waits_.find(connection);
    bytes_ -= SizeOf(wait->second);
    wait->second.absent.erase(key);
    if (wait->second.absent.empty()) {
      waits_.erase(wait);
      out.push_back(SendToClient{connection, std::string(1, kStopWaiting)});
    } else {
      bytes_ += SizeOf(wait->second);
    }
  }
}

void TorchStore::EndWait(StoreConnection connection) {
  const auto found = waits_.find(connection);
  if (found == waits_.end()) return;
  const StoreWait& wait = found->second;
  bytes_ -= SizeOf(wait);
  for (const std::string& key : wait.absent) Remove(waiters_, key, connection);
  if (!wait.barrier.empty()) Remove(at_barrier_, wait.barrier, connection);
  waits_.erase(found);
}

absl::Status TorchStore::Reserve(size_t bytes) const {
  if (bytes_ + bytes <= limits_.bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the store holds ", bytes_, " bytes, and ",
                                                   bytes, " more exceed the limit of ",
                                                   limits_.bytes_max));
}

// --- Invariants

std::string TorchStore::CheckInvariants() const {
  size_t bytes = 0;
  for (const auto& [key, value] : values_) bytes += SizeOf(key, value);
  for (const auto& [key, queue] : queues_) {
    if (queue.empty()) return absl::StrCat("T2: queue '", key, "' is empty");
    for (const SharedBytes& value : queue) bytes += SizeOf(key, value);
  }
  for (const auto& [connection, wait] : waits_) {
    bytes += SizeOf(wait);
    if (wait.absent.empty() == wait.barrier.empty()) return "T1: a wait for nothing";
    for (const std::string& key : wait.absent) {
      if (values_.contains(key)) return absl::StrCat("T1: key '", key, "' is there");
      const auto list = waiters_.find(key);
      if (list == waiters_.end() ||
          std::count(list->second.begin(), list->second.end(), connection) != 1) {
        return absl::StrCat("T3: key '", key, "' does not know who waits for it");
      }
    }
  }
  if (bytes != bytes_ || bytes_ > limits_.bytes_max) return absl::StrCat("T2: ", bytes_);
  return "";
}

}  // namespace muster::agent

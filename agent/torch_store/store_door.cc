#include "agent/torch_store/store_door.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

constexpr size_t kNamed = 16;  // strangers that are told of in a round

// A node's address has room for its ranks' connections and those of the programs that they start.
size_t LimitOf(int ranks_there, bool is_stranger, size_t capacity) {
  if (is_stranger) return capacity / 4;
  return std::min(capacity, 512 + 64 * static_cast<size_t>(ranks_there));
}

}  // namespace

StoreDoor::Answer StoreDoor::Open(StoreConnection connection, const StoreClient& client,
                                  int ranks_there, MonoTime now) {
  const std::string name = client.other_user.empty() ? client.address : client.other_user;
  const auto known = origins_.find(name);
  const bool is_ours = known != origins_.end() && !known->second.is_stranger;
  const bool is_stranger = !is_ours && (ranks_there == 0 || !client.other_user.empty());
  const size_t limit = LimitOf(ranks_there, is_stranger, capacity());
  Answer answer{.refusal = RefusalOf(name, is_stranger, limit)};
  if (!answer.refusal.empty()) return answer;
  if (is_stranger) answer.notice = NoticeOf(name);
  Origin& origin = origins_[name];
  origin.is_stranger = is_stranger;
  origin.limit = limit;
  origin.connections.insert(connection);
  origin.silent.insert(connection);
  guests_[connection] = {.origin = name, .since = now};
  if (IsCrowded(origin)) next_look_ = std::min(next_look_, now + kSilence);
  while (IsOverHalf(guests_.size())) {
    const Origin* const most = LargestOfStrangers();
    if (most == nullptr) break;
    const StoreConnection leaving = *most->connections.rbegin();
    answer.closed.push_back(
        {leaving,
         "it belongs to no node of the job, and more than half of the connections are taken"});
    Close(leaving);
  }
  return answer;
}

std::string StoreDoor::RefusalOf(const std::string& name, bool is_stranger, size_t limit) const {
  if (is_stranger && clients_ == StoreClients::kNodes) {
    return absl::StrCat(name, " belongs to no node of the job; --store_clients=nodes refuses it");
  }
  if (is_stranger && IsOverHalf(guests_.size() + 1)) {
    return absl::StrCat(name, " belongs to no node of the job, and ", guests_.size(), " of ",
                        capacity(), " connections are taken already");
  }
  const auto origin = origins_.find(name);
  if (origin != origins_.end() && origin->second.connections.size() >= limit) {
    return absl::StrCat(name, " already has ", limit, " connections, the limit");
  }
  if (guests_.size() >= capacity()) {
    return absl::StrCat(name, " is one too many: ", guests_.size(), " connections are open");
  }
  return "";
}

std::string StoreDoor::NoticeOf(const std::string& name) {
  if (named_.size() >= kNamed || !named_.insert(name).second) return "";
  return absl::StrCat(
      "PyTorch's store serves ", name,
      ", which belongs to no node of this job: anyone who reaches the store can read "
      "and write its keys; --store_clients=nodes refuses such clients");
}

const StoreDoor::Origin* StoreDoor::LargestOfStrangers() const {
  const Origin* largest = nullptr;
  for (const auto& [name, origin] : origins_) {
    if (!origin.is_stranger) continue;
    if (largest == nullptr || origin.connections.size() > largest->connections.size()) {
      largest = &origin;
    }
  }
  return largest;
}

void StoreDoor::NoteIsUsed(StoreConnection connection) {
  const auto found = guests_.find(connection);
  if (found != guests_.end()) origins_.at(found->second.origin).silent.erase(connection);
}

void StoreDoor::NoteIsOurs(StoreConnection connection) {
  NoteIsUsed(connection);
  const auto found = guests_.find(connection);
  if (found != guests_.end()) origins_.at(found->second.origin).is_stranger = false;
}

void StoreDoor::Close(StoreConnection connection) {
  const auto found = guests_.find(connection);
  if (found == guests_.end()) return;
  const auto origin = origins_.find(found->second.origin);
  origin->second.connections.erase(connection);
  origin->second.silent.erase(connection);
  if (origin->second.connections.empty()) origins_.erase(origin);
  guests_.erase(found);
}

// PyTorch 1 and 2.0 make two connections for a store, of which the second may never say a word: so
// an origin keeps as many silent ones, the oldest, as it has others.
std::vector<StoreConnection> StoreDoor::Surplus(const Origin& origin) const {
  const size_t kept =
      std::min(origin.connections.size() - origin.silent.size(), origin.silent.size());
  return {std::next(origin.silent.begin(), static_cast<ptrdiff_t>(kept)), origin.silent.end()};
}

std::vector<ShownOut> StoreDoor::CloseSilent(MonoTime now) {
  std::vector<ShownOut> out;
  if (now < next_look_) return out;
  next_look_ = MonoTime::InfiniteFuture();
  for (const auto& [name, origin] : origins_) {
    if (!IsCrowded(origin)) continue;
    for (const StoreConnection connection : Surplus(origin)) {
      const MonoTime due = guests_.at(connection).since + kSilence;
      if (due <= now) {
        out.push_back({connection, "it has sent no request, and connections are scarce"});
      } else {
        next_look_ = std::min(next_look_, due);
      }
    }
  }
  for (const ShownOut& closed : out) Close(closed.connection);
  return out;
}

std::string StoreDoor::CheckInvariants() const {
  size_t connections = 0;
  for (const auto& [name, origin] : origins_) {
    connections += origin.connections.size();
    if (origin.connections.empty()) return absl::StrCat("D1: no connection is of ", name);
    for (const StoreConnection connection : origin.silent) {
      if (!origin.connections.contains(connection)) return absl::StrCat("D1: a ghost of ", name);
    }
    for (const StoreConnection connection : origin.connections) {
      const auto guest = guests_.find(connection);
      if (guest == guests_.end() || guest->second.origin != name) {
        return absl::StrCat("D1: a stray connection of ", name);
      }
    }
  }
  return connections == guests_.size() ? "" : "D1: another number of connections";
}

}  // namespace muster::agent

#include "agent/torch_store/attendance.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

std::string Shown(const StoreClient& client) {
  const bool is_v6 = client.address.find(':') != std::string::npos;
  return is_v6 ? absl::StrCat("[", client.address, "]:", client.port)
               : absl::StrCat(client.address, ":", client.port);
}

constexpr size_t kNodesNamed = 3;

std::string Ranks(int count) { return absl::StrCat(count, count == 1 ? " rank" : " ranks"); }

}  // namespace

void Attendance::Connect(StoreConnection connection, StoreClient client) {
  Visitor visitor{.client = std::move(client)};
  const auto known = known_.find(Source(visitor.client.address, visitor.client.port));
  if (known != known_.end()) visitor.rank = known->second;
  visitors_.emplace(connection, std::move(visitor));
}

void Attendance::Arrive(StoreConnection connection) {
  const auto found = visitors_.find(connection);
  if (found == visitors_.end()) return;
  found->second.arrived = true;
  if (found->second.rank) present_.insert(*found->second.rank);
}

void Attendance::Identify(const std::string& address, int port, Rank rank) {
  if (rank.value() < 0 || rank.value() >= world_size_) return;
  if (known_.size() >= 16 * static_cast<size_t>(world_size_)) known_.clear();
  known_[Source(address, port)] = rank;
  for (auto& [connection, visitor] : visitors_) {
    if (visitor.client.port != port || visitor.client.address != address) continue;
    visitor.rank = rank;
    if (visitor.arrived) present_.insert(rank);
  }
}

void Attendance::Disconnect(StoreConnection connection) {
  const auto found = visitors_.find(connection);
  if (found == visitors_.end()) return;
  known_.erase(Source(found->second.client.address, found->second.client.port));
  if (found->second.arrived && !found->second.rank &&
      left_.size() < static_cast<size_t>(world_size_)) {
    left_.push_back(std::move(found->second));
  }
  visitors_.erase(found);
}

std::optional<size_t> Attendance::NodeOf(const StoreClient& client) const {
  // The address that a node gives to the others counts first: addresses of bridges repeat.
  for (const bool by_any : {false, true}) {
    std::optional<size_t> node;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!IsAt(i, client, by_any)) continue;
      if (node) return std::nullopt;  // agents that share a machine
      node = i;
    }
    if (node) return node;
  }
  return std::nullopt;
}

bool Attendance::IsAt(size_t node, const StoreClient& client, bool by_any) const {
  const StoreNode& it = nodes_[node];
  if (it.address == client.address) return true;
  if (client.is_local && static_cast<int>(node) == own_.value()) return true;
  return by_any && absl::c_linear_search(it.other_addresses, client.address);
}

int Attendance::RanksAt(const StoreClient& client) const {
  if (nodes_.empty()) return world_size_;
  int ranks = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (IsAt(i, client, /*by_any=*/true)) ranks += nodes_[i].local_world_size;
  }
  return ranks;
}

std::optional<StoreConnection> Attendance::Find(const std::string& address, int port) const {
  for (const auto& [connection, visitor] : visitors_) {
    if (visitor.client.port == port && visitor.client.address == address) return connection;
  }
  return std::nullopt;
}

std::vector<int> Attendance::Unnamed() const {
  std::vector<int> counts(nodes_.size() + 1, 0);
  const auto count = [&](const Visitor& visitor) {
    if (visitor.arrived && !visitor.rank) ++counts[NodeOf(visitor.client).value_or(nodes_.size())];
  };
  for (const auto& [connection, visitor] : visitors_) count(visitor);
  for (const Visitor& visitor : left_) count(visitor);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    counts[i] = std::min(counts[i], nodes_[i].local_world_size - NumNamed(nodes_[i]));
  }
  return counts;
}

int Attendance::NumNamed(const StoreNode& node) const {
  const auto end = present_.lower_bound(Rank(node.first_rank.value() + node.local_world_size));
  return static_cast<int>(std::distance(present_.lower_bound(node.first_rank), end));
}

int Attendance::NumPresent() const {
  int count = static_cast<int>(present_.size());
  for (const int unnamed : Unnamed()) count += unnamed;
  return std::min(count, world_size_);
}

Attendance Attendance::Among(const absl::btree_set<StoreConnection>& connections) const {
  Attendance among(world_size_, nodes_, own_);
  for (const StoreConnection connection : connections) {
    Visitor visitor;
    if (const auto found = visitors_.find(connection); found != visitors_.end()) {
      visitor = found->second;
    }
    visitor.arrived = true;
    if (visitor.rank) among.present_.insert(*visitor.rank);
    among.visitors_.emplace(connection, std::move(visitor));
  }
  return among;
}

std::optional<std::vector<int>> Attendance::Missing() const {
  // The words of the clients alone count here: that an address is a node's is a guess.
  const bool all_are_named =
      left_.empty() && std::none_of(visitors_.begin(), visitors_.end(), [](const auto& entry) {
        return entry.second.arrived && !entry.second.rank;
      });
  if (!all_are_named) return std::nullopt;
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!present_.contains(Rank(rank))) missing.push_back(rank);
  }
  return missing;
}

std::optional<Rank> Attendance::RankOf(StoreConnection connection) const {
  const auto found = visitors_.find(connection);
  return found == visitors_.end() ? std::nullopt : found->second.rank;
}

std::string Attendance::PresentInWords() const {
  for (const int unnamed : Unnamed()) {
    if (unnamed > 0) return "";
  }
  std::vector<int> present;
  for (const Rank rank : present_) present.push_back(rank.value());
  return RanksInWords(present);
}

std::string Attendance::MissingInWords() const {
  const int missing = world_size_ - NumPresent();
  const std::vector<int> unnamed = Unnamed();
  // Somebody has come of whom not even the node is known: any of the absent could be that one.
  if (nodes_.empty() || unnamed.back() > 0) return Ranks(missing);
  std::vector<std::string> parts;
  int nodes_missing = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const StoreNode& node = nodes_[i];
    std::vector<int> absent;
    for (Rank rank = node.first_rank;
         absent.size() + NumNamed(node) < static_cast<size_t>(node.local_world_size);
         rank = rank.Next()) {
      if (!present_.contains(rank)) absent.push_back(rank.value());
    }
    const int count = static_cast<int>(absent.size()) - unnamed[i];
    if (count <= 0 || ++nodes_missing > static_cast<int>(kNodesNamed)) continue;
    if (unnamed[i] > 0) {
      parts.push_back(
          absl::StrCat(count, " of the ", node.local_world_size, " ranks of ", node.name));
    } else {
      parts.push_back(RanksInWords(absent));
      if (nodes_.size() > 1) absl::StrAppend(&parts.back(), " (", node.name, ")");
    }
  }
  if (nodes_missing > static_cast<int>(kNodesNamed)) {
    const int more = nodes_missing - static_cast<int>(kNodesNamed);
    parts.push_back(absl::StrCat("ranks of ", more, more == 1 ? " more node" : " more nodes"));
  }
  return NamesInWords(parts, static_cast<int>(parts.size()));
}

std::string Attendance::HostOf(StoreConnection connection) const {
  const auto found = visitors_.find(connection);
  return found == visitors_.end() ? "" : found->second.client.address;
}

std::string Attendance::NameOf(StoreConnection connection) const {
  const auto found = visitors_.find(connection);
  if (found == visitors_.end()) return "an unknown client";
  const Visitor& visitor = found->second;
  if (visitor.rank) return absl::StrCat("rank ", visitor.rank->value());
  const std::optional<size_t> node = NodeOf(visitor.client);
  if (visitor.arrived && node) return absl::StrCat("a rank of ", nodes_[*node].name);
  return Shown(visitor.client);
}

}  // namespace muster::agent

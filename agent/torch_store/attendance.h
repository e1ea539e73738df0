// The attendance of a round's ranks at the store, as far as their connections tell.
//
// A connection belongs to a rank once the agent of its node has said so (it looks up which of its
// workers owns the socket); until then, or without that, it belongs to the node whose address it
// comes from, and where two nodes share an address, to nobody.
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "agent/torch_store/torch_store.h"
#include "proto/base/ids.h"

namespace muster::agent {

struct StoreNode {
  std::string name;
  std::string address;  // from which its workers connect
  Rank first_rank;
  int local_world_size = 0;
  std::vector<std::string> other_addresses = {};  // from which they may connect too
};

// The source of a connection. One of this machine's addresses counts as `is_local`.
struct StoreClient {
  std::string address;
  int port = 0;
  bool is_local = false;
  std::string other_user = {};  // "uid 1001 of this machine"; empty: the job's own, or not known
};

class Attendance {
 public:
  // `nodes` by node rank; empty for rounds too large to list them. `own` is the node of the store.
  Attendance(int world_size, std::vector<StoreNode> nodes, NodeRank own)
      : world_size_(world_size), nodes_(std::move(nodes)), own_(own) {}

  void Connect(StoreConnection connection, StoreClient client);
  // What it said shows that it is a rank's (see README.md, "Who is there").
  void Arrive(StoreConnection connection);
  // The connection from `port` of `address` is that of `rank`; kept also if it comes later.
  void Identify(const std::string& address, int port, Rank rank);
  // A rank that has come stays counted.
  void Disconnect(StoreConnection connection);

  // Ranks that have come; at most the world size.
  int NumPresent() const;
  bool IsComplete() const { return NumPresent() >= world_size_; }
  int world_size() const { return world_size_; }
  // Ranks that have not come, sorted; nothing where that is not certain of each: one that has come
  // did not say its rank.
  std::optional<std::vector<int>> Missing() const;
  // How many ranks may be behind its address: those of the nodes that have named it. All of them,
  // where the round is too large to list nodes.
  int RanksAt(const StoreClient& client) const;
  // The connection from `port` of `address`, if it is there.
  std::optional<StoreConnection> Find(const std::string& address, int port) const;
  // Whose it is, where that is known.
  std::optional<Rank> RankOf(StoreConnection connection) const;
  // The same round, to which only those have come to whom `connections` belong. Of one that is gone
  // it is not known whose it was.
  Attendance Among(const absl::btree_set<StoreConnection>& connections) const;
  // "ranks 0 and 2"; empty if the rank of one that has come is not known.
  std::string PresentInWords() const;
  // "ranks 3 and 5 (node2)", "rank 1 (node1) and 2 of the 4 ranks of node2", "2 ranks".
  std::string MissingInWords() const;
  // "rank 3", "a rank of node2", "10.0.0.7:40312".
  std::string NameOf(StoreConnection connection) const;
  // The address that it comes from; empty if there is no such connection.
  std::string HostOf(StoreConnection connection) const;

 private:
  struct Visitor {
    StoreClient client;
    std::optional<Rank> rank;
    bool arrived = false;
  };
  using Source = std::pair<std::string, int>;  // address and port

  std::optional<size_t> NodeOf(const StoreClient& client) const;
  // Whether `client` comes from the address of `node`; `by_any`: from any of its addresses.
  bool IsAt(size_t node, const StoreClient& client, bool by_any) const;
  // How many came from each node without saying their rank; the last one counts those of no node.
  std::vector<int> Unnamed() const;
  int NumNamed(const StoreNode& node) const;

  // Constant after construction.
  int world_size_;
  std::vector<StoreNode> nodes_;
  NodeRank own_;

  absl::btree_map<StoreConnection, Visitor> visitors_;
  absl::btree_map<Source, Rank> known_;
  absl::btree_set<Rank> present_;
  // Arrived without a known rank, gone since; bounded by the world size.
  std::vector<Visitor> left_;
};

}  // namespace muster::agent

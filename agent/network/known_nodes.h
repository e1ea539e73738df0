// The nodes of a round as this node knows them: how they are called, where they are, and with whom
// the last check failed.
//
// Where assignments are too large to list them, the nodes introduce themselves through the round's
// store, and each learns of those alone that it is checked with.
//
// Threads: loop thread only.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/network/pairs.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/membership.h"
#include "proto/base/store_messages.h"

namespace muster::agent {

class KnownNodes {
 public:
  // Asks the round's store; the answer may never come.
  using Ask = std::function<void(StoreOperation, std::function<void(const StoreReply&)>)>;

  struct Meeting {
    Round round;
    int self = 0;  // node rank
    Introduction own;
    std::vector<int> others;  // node ranks, one at least
    absl::Duration patience;
  };

  KnownNodes(asio::io_context& loop, Ask ask);

  // The nodes of a round are those of this list. Each has a port.
  void TakeList(const Peers& peers);
  // The nodes of a round are this one, and those of the others that introduce themselves. `then` is
  // called once, when all have, or after twice the patience; not after Cancel.
  void Meet(Meeting meeting, absl::AnyInvocable<void()> then);
  // Nothing is waited for any more.
  void Cancel();

  // Nodes by their rank; in a very large round a few of them.
  const absl::btree_map<int, Introduction>& known() const { return known_; }
  // A node as an end of a pair; its interface is not known here.
  PairEnd EndOf(int node) const;

  // `nodes` are those with whom the check has failed, either way. They stay so in later rounds,
  // where they may have other ranks, until the next check.
  void Doubt(const std::vector<int>& nodes);
  // The ranks of such nodes, ascending.
  std::vector<int> Doubtful() const;

 private:
  void AskFor(int node);
  void Take(int node, const std::string& text);
  void Finish();

  const Ask ask_;  // constant after construction

  absl::btree_map<int, Introduction> known_;
  absl::btree_set<std::pair<std::string, std::string>> doubtful_;  // names and addresses

  // The meeting.
  Round round_;
  size_t awaited_ = 0;  // introductions that are missing
  asio::steady_timer timer_;
  absl::AnyInvocable<void()> then_;
};

}  // namespace muster::agent

// What a node is in its job, as it says in each report: its ports, its round and instance, and what
// it remembers for a server that has lost its state.
//
// Threads: compatible.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "agent/core/agent_events.h"
#include "proto/base/ids.h"
#include "proto/base/membership.h"

namespace muster::agent {

class NodeStanding {
 public:
  explicit NodeStanding(NodeDescription node) : node_(std::move(node)) {}

  // The ports are those of the round that is joined next.
  void TakePorts(const PortsReserved& event);
  // A server that knows us names the instance of the job. While a node stops workers of an instance
  // that is over, what it reports is of no other.
  void TakeInstance(Instance instance);
  void TakePlace(const Assignment& assignment);
  // Pairs of nodes of this round that do not reach each other, for the rendezvous to part them.
  void TakeFailedPairs(std::vector<FailedPair> pairs) { failed_pairs_ = std::move(pairs); }
  // The round ended before its assignment reached us. Until we say that we know, the rendezvous
  // counts us as still in it (its invariant R8).
  void PassOver(Round round) { round_ = round; }
  // All that we know of the job is of the past. `has_failed`: a failure of ours has been charged by
  // nobody else, since the server that would have has lost its state.
  void BecomeStale(bool has_failed);
  bool is_stale() const { return instance_ == Instance(); }
  void BeginJoin();
  // `is_running`: failed pairs are of a round that runs here.
  void Describe(bool is_running, AgentReport* report);

  Round round() const { return round_; }
  int num_nodes() const { return num_nodes_; }
  // A report's round never falls; empty if that holds.
  std::string CheckInvariants() const;

 private:
  NodeDescription node_;  // with the ports of the round being joined
  Round round_ = kNoRound;
  Round last_reported_round_ = kNoRound;
  Instance instance_;
  int num_nodes_ = 0;                     // of `round_`
  std::vector<FailedPair> failed_pairs_;  // of `round_`
  JobPast past_;
};

}  // namespace muster::agent

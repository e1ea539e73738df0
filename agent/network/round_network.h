// Finds out, before the workers of a round start on several nodes, which network they use, whether
// every pair of nodes can talk over it, and whether the nodes are alike. The decisions are pure
// (network_choice.h, pairs.h, round_judgement.h); what they need is asked, exchanged and reported
// here.
//
// Every node reports on its own pairs through the round's store; node 0 judges all reports. Only
// with --network=require or --strict_nodes does a node wait for the judgement. Where a required
// pair fails no worker starts: node 0 tells the rendezvous, which ends the round, or the job.
//
// Threads: loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/network/known_nodes.h"
#include "agent/network/network_choice.h"
#include "agent/network/pair_check.h"
#include "agent/network/pairs.h"
#include "agent/network/round_judgement.h"
#include "asio/io_context.hpp"
#include "proto/base/membership.h"

namespace muster::agent {

struct RoundNetworkOptions {
  NetworkUse use;
  std::string node_name;
  std::string address;       // of this node, for the others
  NodeFacts facts;           // without what the network choice adds
  EnvironmentMap inherited;  // variables that the workers have anyway
  // The time that a peer has to get its assignment, too, and to answer.
  absl::Duration patience = absl::Seconds(5);
};

// The workers of a round may start, unless one of these is set.
struct RoundClearance {
  std::optional<Departure> forbidden;
  std::vector<FailedPair> failed;  // for the rendezvous; on node 0 alone
};

class RoundNetwork {
 public:
  using Ask = KnownNodes::Ask;
  using Then = absl::AnyInvocable<void(const RoundClearance&)>;

  RoundNetwork(asio::io_context& loop, RoundNetworkOptions options, Ask ask);

  // A round of one node, and --network=off, are ready at once. `port`: the first of this node's
  // workers.
  void StartRound(const Assignment& assignment, int port);
  // `then` is called once, perhaps before this returns; never where a required pair has failed and
  // this is not node 0.
  void WhenReady(Then then);
  // The round ends before its workers have started.
  void Cancel();

  // Variables for the workers of the round, once it is ready.
  EnvironmentMap variables() const { return NetworkVariables(choice_, options_.inherited); }
  // Pairs of the round that failed, as this node knows; sentences.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void Check(Neighbours neighbours);
  void OnChecked(const PairResults& results);
  void Choose(const std::vector<PairResult>& results);
  void Report(const std::vector<PairResult>& results);
  void Judge(std::vector<NodeReport> reports);
  void SetJudgement(const RoundJudgement& judgement);
  void AwaitJudgement();
  void OnJudgement(const RoundJudgement& judgement);
  void NoteFaults(const std::vector<std::string>& faults);
  void Warn(const std::string& event, const std::string& text);
  void Conclude(RoundClearance clearance);
  bool AwaitsJudgement() const {
    return options_.use.strict_nodes || options_.use.kind == NetworkUse::Kind::kRequire;
  }
  int self() const { return static_cast<int>(assignment_.node_rank.value()); }
  PairEnd EndOf(int node) const;

  // Constant after construction.
  const RoundNetworkOptions options_;
  const Ask ask_;

  // State of the round.
  PairCheck check_;
  Assignment assignment_;
  KnownNodes nodes_;
  NetworkChoice choice_;
  std::vector<std::string> faults_;
  std::optional<RoundClearance> clearance_;  // none: not ready yet
  Then then_;

  std::vector<std::string> said_;  // lines of this and earlier rounds, each once
};

}  // namespace muster::agent

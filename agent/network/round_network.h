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

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/network/network_choice.h"
#include "agent/network/pair_check.h"
#include "agent/network/pairs.h"
#include "agent/network/round_judgement.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/membership.h"
#include "proto/base/store_messages.h"

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
  // Asks the round's store; the answer may never come.
  using Ask = std::function<void(StoreOperation, std::function<void(const StoreReply&)>)>;
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
  const EnvironmentMap& variables() const { return variables_; }
  // Pairs of the round that failed, as this node knows; sentences.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void AwaitIntroductions();
  void AskForIntroduction(int node);
  void TakeIntroduction(int node, const std::string& text);
  void Check();
  void Doubt(int peer);
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
  bool IsListed() const {
    return static_cast<int>(assignment_.peers.size()) == assignment_.num_nodes;
  }
  PairEnd EndOf(int node) const;

  // Constant after construction.
  const RoundNetworkOptions options_;
  const Ask ask_;

  // State of the round.
  PairCheck check_;
  Assignment assignment_;
  Neighbours neighbours_;
  absl::btree_map<int, Introduction> known_;  // nodes, by rank; a few of very many
  size_t awaited_ = 0;                        // introductions of neighbours
  asio::steady_timer timer_;                  // of the introductions
  NetworkChoice choice_;
  EnvironmentMap variables_;
  std::vector<std::string> faults_;
  std::optional<RoundClearance> clearance_;  // none: not ready yet
  Then then_;

  // The names and addresses of those with whom the last check failed, either way.
  absl::btree_set<std::pair<std::string, std::string>> doubtful_;
  std::vector<std::string> said_;  // lines of this and earlier rounds, each once
};

}  // namespace muster::agent

// The hang watch of a job: what the agents of its nodes say meets here, and is judged
// (hang_judge.h).
//
//   summaries of all nodes -> somebody is silent, or nobody comes to the start
//   -> AskDetails to all -> Diagnose -> Judge
//     -> a notice: SayNotice to all
//     -> a verdict: AskStacks to a few; nothing has moved there -> SayVerdict to all, and
//        ReplaceNodes where --watch=replace of the nodes at fault allows it and the job can do
//        without them
//   a window of all nodes that measure one -> others are slow now than before -> SaySlow to all
//     (stragglers.h; of PyTorch's records AskArrivals to them before)
//   some ranks have ended and others have not -> AskDetails to all -> SayNotice (end_watch.h)
//   a rank has aborted -> AskLastCalls to all -> SayAborts to all (abort_watch.h), also while the
//   round stops
//
// Silence is what the agents have watched of it, and never grows here: a node that is not heard, or
// that was stopped, makes nobody silent. Who has not come to PyTorch's store is told by the node of
// rank 0 for the ranks of all (gatherings.h). What no agent tells is out of sight, and is never
// judged; notice and verdict say what that is.
//
// Pure. Thread-compatible: one caller at a time (of a job over several nodes the server,
// rendezvous/server/job_loop.h; of one on a single node its agent, agent/watch/own_judge.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/judge/abort_watch.h"
#include "rendezvous/hangs/judge/details_question.h"
#include "rendezvous/hangs/judge/end_watch.h"
#include "rendezvous/hangs/judge/hang_judge.h"
#include "rendezvous/hangs/judge/node_table.h"
#include "rendezvous/hangs/judge/said_verdict.h"
#include "rendezvous/hangs/judge/stacks_question.h"
#include "rendezvous/hangs/judge/stragglers.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

// Tells the rendezvous that these members are to leave the job, which goes on without them.
struct ReplaceNodes {
  std::vector<Incarnation> nodes;
  std::string why;
};

class JobWatch {
 public:
  // Orders are performed in this order.
  using Orders = std::vector<std::variant<OrderTo, ReplaceNodes>>;

  // `nodes` are all members of `round`, by first rank. What was learned stays.
  void StartRound(Round round, std::vector<WatchedNode> nodes, MonoTime now);
  void StopRound();
  // Takes what the job can do without now; that is nothing before the first call.
  void SetSpares(Spares spares) { nodes_.SetSpares(spares); }
  // The job's --shutdown_timeout; see TimesForLastCalls.
  void SetGrace(absl::Duration grace) { aborts_.SetGrace(grace); }
  bool IsWatching() const { return is_watching_; }

  // Words of another round, of strangers, and answers to old questions change nothing.
  Orders OnWord(Incarnation from, NodeWord word, MonoTime now);
  Orders Tick(MonoTime now);
  // Earliest instant at which Tick would return something.
  MonoTime NextDeadline() const;

  const HangLimits& limits() const { return judge_.limits(); }
  // Something is being looked into, noticed or judged.
  bool HasIncident() const { return judge_.HasIncident(); }

 private:
  void On(const WatchedNode& node, NodeSummary&& summary, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeDetails&& details, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeStacks&& stacks, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeArrivals&& arrivals, MonoTime now, Orders& out);
  void On(const WatchedNode& node, RankAborted&& aborted, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeLastCalls&& calls, MonoTime now, Orders& out);
  // It waits for answers of which a verdict may come.
  bool IsAsking() const { return details_.poll().IsOpen() || stacks_.poll().IsOpen(); }
  bool WantsDetails() const;
  MonoTime NextQuestion() const;
  void Advance(MonoTime now, Orders& out);
  void Ask(MonoTime now, Orders& out);
  void Decide(MonoTime now, Orders& out);
  void Notify(const Notice& notice, Orders& out) const;
  void Gather(const Verdict& verdict, MonoTime now, Orders& out);
  void Conclude(MonoTime now, Orders& out);
  // False if the nodes at fault are not replaced; then `why_not` says why, where they were to be.
  bool Replace(SayVerdict& say, std::string& why_not, Orders& out);
  std::string WhyNotReplaced(const Diagnosis& diagnosis,
                             const absl::btree_set<Incarnation>& at_fault) const;
  void TellAll(const WatchOrder& order, Orders& out) const;

  HangJudge judge_;
  NodeTable nodes_;
  Stragglers stragglers_;
  AbortWatch aborts_;
  EndWatch ends_;
  bool is_watching_ = false;

  uint64_t question_ = 0;  // the last one
  MonoTime next_question_;
  DetailsQuestion details_;
  StacksQuestion stacks_;
  SaidVerdict said_;
};

}  // namespace muster::hangs

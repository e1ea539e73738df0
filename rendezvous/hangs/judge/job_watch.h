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
//   a rank comes last to nearly every collective -> SaySlow to all (late_ranks.h)
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
#include "rendezvous/hangs/judge/late_ranks.h"
#include "rendezvous/hangs/judge/node_table.h"
#include "rendezvous/hangs/judge/pace_watch.h"
#include "rendezvous/hangs/judge/said_verdict.h"
#include "rendezvous/hangs/judge/stacks_question.h"
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
  bool IsWatching() const { return !nodes_.empty(); }

  // Words of another round, of strangers, and answers to old questions change nothing.
  Orders OnWord(Incarnation from, NodeWord word, MonoTime now);
  Orders Tick(MonoTime now);
  // Earliest instant at which Tick would return something.
  MonoTime NextDeadline() const;

  const HangLimits& limits() const { return judge_.limits(); }
  // Something is being looked into, noticed or judged.
  bool HasIncident() const { return judge_.HasIncident(); }

 private:
  enum class Stage { kListening, kAsking, kGathering };

  void On(const WatchedNode& node, NodeSummary&& summary, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeDetails&& details, MonoTime now, Orders& out);
  void On(const WatchedNode& node, NodeStacks&& stacks);
  void TakeSummary(const WatchedNode& node, NodeSummary&& summary, MonoTime now, Orders& out);
  // `node` answers the question that is asked in `stage`.
  bool IsAnswer(const WatchedNode& node, Stage stage, uint64_t question);
  bool WantsDetails() const;
  MonoTime NextQuestion() const;
  void SayOfTheEnd(const std::optional<EndWatch::Said>& said, Orders& out) const;
  void SayLate(const std::optional<std::string>& words, Orders& out) const;
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
  PaceWatch paces_;  // by what programs mark
  LateWatch late_;   // by when ranks of PyTorch call their collectives
  AbortWatch aborts_;
  EndWatch ends_;

  // The question under way, or the last one.
  Stage stage_ = Stage::kListening;
  uint64_t question_ = 0;
  absl::btree_set<Incarnation> awaited_;  // who has not answered it yet
  MonoTime deadline_;                     // of the question
  MonoTime next_question_;
  DetailsQuestion details_;
  StacksQuestion stacks_;
  SaidVerdict said_;
};

}  // namespace muster::hangs

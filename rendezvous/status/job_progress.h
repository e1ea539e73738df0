// What the server hears of a job beside its membership: how far the ranks are, who is silent, and
// what the hang watch has said last. For `muster status`; decides nothing.
//
// Threads: compatible; pure.
#pragma once

#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/judge/job_watch.h"

namespace muster::status {

// One node, as it said last in the round that runs.
struct NodeSaid {
  hangs::NodeProgress progress;
  int silent_rank = -1;
  absl::Duration silent_for;  // when it said so
  MonoTime at;
};

struct Said {
  hangs::StandingKind kind = hangs::StandingKind::kNone;
  std::string text;
  MonoTime at;
};

class JobProgress {
 public:
  // What was said of ranks that do not run any more stands no longer, and is the last incident.
  void StartRound();
  void OnSummary(Incarnation from, const hangs::NodeSummary& summary, MonoTime now);
  // What the watch of all nodes says.
  void OnOrders(const hangs::JobWatch::Orders& orders, MonoTime now);

  const absl::btree_map<Incarnation, NodeSaid>& nodes() const { return nodes_; }
  // What stands now; kNone: nothing.
  const Said& standing() const { return standing_; }
  // The last notice or verdict, also one that is over.
  const std::optional<Said>& last() const { return last_; }

 private:
  void Say(hangs::StandingKind kind, const std::string& text, MonoTime at);

  absl::btree_map<Incarnation, NodeSaid> nodes_;
  Said standing_;
  std::optional<Said> last_;
};

}  // namespace muster::status

// What the ranks of a job over several nodes called last, asked where one of them has aborted, and
// said to all nodes (last_calls.h).
//
//   RankAborted -> AskLastCalls to all that take part -> all have answered, or
//     LastCallsTimes::answers -> SayAborts to all that take part
//
// Once a round. Goes on while the round stops, since the failure of another rank, which loses its
// connection, may be heard of before the answers.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/last_calls.h"
#include "rendezvous/hangs/judge/watched_node.h"

namespace muster::hangs {

// How long what ranks called last is waited for. Each time contains the one before it.
struct LastCallsTimes {
  absl::Duration workers;  // by an agent, for its workers
  absl::Duration answers;  // by the server, for the agents
  absl::Duration all;      // by an agent, before it signals its workers or reports the failure
};
// `grace` is --shutdown_timeout. All of it is a second, more where the grace is longer than half a
// minute, and never more than half of the grace, which passes meanwhile.
LastCallsTimes TimesForLastCalls(absl::Duration grace);

class AbortWatch {
 public:
  using Orders = std::vector<OrderTo>;

  // The job's --shutdown_timeout; 30 s before the first call.
  void SetGrace(absl::Duration grace) { times_ = TimesForLastCalls(grace); }
  // `nodes` are all members of `round`.
  void StartRound(Round round, const std::vector<WatchedNode>& nodes);
  // A summary from a member: who has told one takes part.
  void OnSummary(Incarnation from);

  // Words of another round, of strangers, and answers that nobody waits for change nothing. An
  // abort that is told after all has been said is answered with that.
  Orders OnWord(Incarnation from, const RankAborted& word, MonoTime now);
  Orders OnWord(Incarnation from, NodeLastCalls word);
  Orders Tick(MonoTime now);
  MonoTime NextDeadline() const;

 private:
  struct Node {
    WatchedNode about;
    bool takes_part = false;
  };

  Orders Conclude();
  Orders TellAll(const WatchOrder& order) const;

  LastCallsTimes times_ = TimesForLastCalls(absl::Seconds(30));
  Round round_ = kNoRound;
  absl::btree_map<Incarnation, Node> nodes_;
  absl::btree_set<int> aborted_;
  std::vector<RankCalls> ranks_;
  absl::btree_set<Incarnation> awaited_;  // who has not answered yet
  std::optional<MonoTime> deadline_;      // of the answers, while they are awaited
  std::optional<SayAborts> said_;
};

}  // namespace muster::hangs

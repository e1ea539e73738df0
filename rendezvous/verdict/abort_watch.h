// What the ranks of a job over several nodes called last, asked where one of them has aborted, and said
// to all nodes (last_calls.h).
//
//   RankAborted -> AskLastCalls to all that take part -> all have answered, or kTimeForLastCalls
//     -> SayAborts to all that take part
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
#include "rendezvous/verdict/last_calls.h"
#include "rendezvous/verdict/watched_node.h"

namespace muster::verdict {

// Longer than an agent asks its workers, and shorter than the agent of the rank that has aborted waits
// for what is said, before it reports the failure (agent/watch/hang_watch_aborts.cc).
inline constexpr absl::Duration kTimeForLastCalls = absl::Milliseconds(900);

class AbortWatch {
 public:
  using Orders = std::vector<OrderTo>;

  // `nodes` are all members of `round`.
  void StartRound(Round round, const std::vector<WatchedNode>& nodes);
  // Of a member: who has told one takes part.
  void OnSummary(Incarnation from);

  // Words of another round, of strangers, and answers that nobody waits for change nothing. An abort
  // that is told after all has been said is answered with that.
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

  Round round_ = kNoRound;
  absl::btree_map<Incarnation, Node> nodes_;
  absl::btree_set<int> aborted_;
  std::vector<RankCalls> ranks_;
  absl::btree_set<Incarnation> awaited_;  // who has not answered yet
  std::optional<MonoTime> deadline_;      // of the answers, while they are awaited
  std::optional<SayAborts> said_;
};

}  // namespace muster::verdict

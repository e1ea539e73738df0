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

#include "absl/container/btree_set.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/last_calls.h"
#include "rendezvous/hangs/judge/node_table.h"
#include "rendezvous/hangs/judge/poll.h"

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
  void StartRound();

  // Words of members of the round of `nodes`. Answers that nobody waits for change nothing. An
  // abort that is told after all has been said is answered with that.
  Orders OnWord(const NodeTable& nodes, const WatchedNode& from, const RankAborted& word,
                MonoTime now);
  void OnWord(const WatchedNode& from, NodeLastCalls word);
  // Says what is known once all have answered, or in time.
  Orders Tick(const NodeTable& nodes, MonoTime now);
  MonoTime NextDeadline() const { return poll_.NextDeadline(); }

 private:
  LastCallsTimes times_ = TimesForLastCalls(absl::Seconds(30));
  absl::btree_set<int> aborted_;
  std::vector<RankCalls> ranks_;
  Poll poll_;  // once a round
  std::optional<SayAborts> said_;
};

}  // namespace muster::hangs

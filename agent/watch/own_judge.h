// The judge of a job on a single node, which its agent hosts: what the server's is to the agents of
// a larger one.
//
// Pure. Thread-compatible: one caller at a time (hang_watch.h).
#pragma once

#include <utility>

#include "agent/watch/watched_round.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/judge/job_watch.h"

namespace muster::agent {

class OwnJudge {
 public:
  // `obey` gets its orders, during the calls below. It may call Hear.
  OwnJudge(absl::Duration grace, std::function<void(const hangs::WatchOrder&)> obey)
      : obey_(std::move(obey)) {
    watch_.SetGrace(grace);
  }

  // It is not the judge of a round over several nodes, and hears nothing then.
  void StartRound(const WatchedRound& round, MonoTime now) {
    is_judge_ = round.num_nodes == 1;
    if (!is_judge_) return watch_.StopRound();
    watch_.StartRound(round.round,
                      {{.agent = kSelf,
                        .first_rank = round.first_rank,
                        .num_ranks = static_cast<int>(round.boards.size())}},
                      now);
  }
  void StopRound() { watch_.StopRound(); }
  bool IsJudge() const { return is_judge_; }

  void Hear(hangs::NodeWord word, MonoTime now) {
    if (is_judge_) Perform(watch_.OnWord(kSelf, std::move(word), now));
  }
  // Does what is due; once a second is enough.
  void Tick(MonoTime now) {
    if (is_judge_) Perform(watch_.Tick(now));
  }
  bool HasIncident() const { return watch_.HasIncident(); }

 private:
  static constexpr Incarnation kSelf = Incarnation(1);

  // Nobody is replaced: there is no other node.
  void Perform(const hangs::JobWatch::Orders& orders) {
    for (const auto& order : orders) {
      if (const auto* to = std::get_if<hangs::OrderTo>(&order)) obey_(to->order);
    }
  }

  const std::function<void(const hangs::WatchOrder&)> obey_;
  hangs::JobWatch watch_;
  bool is_judge_ = false;
};

}  // namespace muster::agent

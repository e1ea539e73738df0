// How long a rank may be silent: per phase, by how long ranks were silent before they went on.
//
// The soft limit is for a notice, which accuses nobody. The hard one ends workers. What was learned
// lengthens both and shortens neither below what is set: a thousand quick steps say nothing about
// the one that waits for a slow disk.
//
// Pure.
#pragma once

#include "absl/time/time.h"
#include "rendezvous/hangs/evidence/silence_history.h"

namespace muster::hangs {

class HangLimits {
 public:
  static constexpr absl::Duration kSoftMin = absl::Seconds(6);
  static constexpr absl::Duration kSoftMax = absl::Minutes(10);

  // `hang_timeout` is the hard limit of a step where nothing longer was learned.
  explicit HangLimits(absl::Duration hang_timeout = absl::Minutes(10))
      : hang_timeout_(hang_timeout) {}

  void SetTimeout(absl::Duration hang_timeout) { hang_timeout_ = hang_timeout; }
  const SilenceHistory& history() const { return history_; }
  SilenceHistory& history() { return history_; }

  absl::Duration Soft(WatchPhase phase) const;
  absl::Duration Hard(WatchPhase phase) const;

 private:
  absl::Duration hang_timeout_;
  SilenceHistory history_;
};

}  // namespace muster::hangs

// Whether a node may ask for a place, by the word of a program of its user's (--node_check).
//
// The check is due before the first join and after each failure of the node's own workers. While it
// runs, and once it has failed, the node reports and asks for no place. A failed check runs again
// after a pause that grows, so that a node that has recovered comes back by itself.
//
// Threads: compatible.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "agent/core/turn.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// The pause after the first failure; it doubles with each in a row, up to the longest.
inline constexpr absl::Duration kFirstCheckPause = absl::Seconds(10);
inline constexpr absl::Duration kMaxCheckPause = absl::Minutes(10);

class NodeCheck {
 public:
  // Something has happened by which the last answer counts no more.
  void BecomeDue() { phase_ = Phase::kDue; }
  void Run(Turn& turn);
  // Nobody waits for the answer any more: a check that runs is ended, and due again.
  void Interrupt(Turn& turn);
  // The answer of the check that runs. A departure: the node cannot go on, because its program
  // cannot be executed and never has been, or because no other node can take the place of this one.
  std::optional<Departure> Take(const CheckEnded& event, Turn& turn);

  // The node asks for no place.
  bool is_open(const AgentCoreOptions& options) const {
    return options.checks_node && phase_ != Phase::kPassed;
  }
  bool is_due() const { return phase_ == Phase::kDue; }
  bool is_running() const { return phase_ == Phase::kRunning; }
  // How the last check failed; empty: it has passed, or has not ended yet.
  const std::string& failure() const { return failure_; }
  // When a check that has failed runs again; InfiniteFuture() unless one waits for that.
  MonoTime NextRun() const {
    return phase_ == Phase::kFailed ? next_run_ : MonoTime::InfiniteFuture();
  }

 private:
  enum class Phase { kPassed, kDue, kRunning, kFailed };
  Phase phase_ = Phase::kDue;
  bool has_ever_passed_ = false;
  std::string failure_;
  absl::Duration pause_;  // the one that runs, or ran last
  MonoTime next_run_;
};

}  // namespace muster::agent

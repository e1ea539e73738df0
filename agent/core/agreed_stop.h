// How a node leaves in good order: after the one step at which all ranks of the round stop. The
// server names it (rendezvous/core/stop_step.h); this passes it on to the workers, and knows how
// far they are.
//
// A node that is told to end by SIGTERM, as by a scheduler that takes it back, wishes for such a
// step first, if all its workers obey; so does one whose time will be up soon, or that gets a user
// signal which --signals_to_handle names. Half of the grace is for agreeing on it, and all but its
// last seconds for leaving after it; then the stop ladder (stop_ladder.h) is climbed as ever.
//
// Threads: compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "agent/core/turn.h"
#include "agent/core/worker_group.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class AgreedStop {
 public:
  // No stop is known of a new round; a wish stays.
  void BeginRound() { stop_at_.reset(); }
  // The server asks for a stop of this round, or names its step. False: it has said so before.
  bool Take(const StopAt& at, Turn& turn);
  void TellWorkers(Turn& turn) const;
  // Workers that hold for a step that is open wake: signals follow, or they go on. What they have
  // promised is no more.
  void Withdraw(WorkerGroup& workers, Turn& turn);
  bool is_known() const { return stop_at_.has_value(); }
  // What the workers have promised, if a stop is known and each has.
  std::optional<int64_t> Floor(const WorkerGroup& workers) const;

  // This node has been told to end, and asks for a stop step first. `departure` is what follows if
  // no step comes in time.
  void Wish(Departure departure, const WorkerGroup& workers, Turn& turn);
  bool is_wished() const { return wish_.has_value(); }
  // What is reported of the wish.
  std::optional<StopWish> Wished() const;
  // No step has come in time, or not all workers have left after it: says so, and what follows.
  Departure GiveUp(const WorkerGroup& workers, Turn& turn) const;
  // The wish: what follows without a step, when it is given up, and what is left of its grace.
  const Departure& departure() const { return wish_->departure; }
  MonoTime patience_ends() const { return wish_->patience_ends; }
  absl::Duration GraceLeft(MonoTime now) const { return wish_->grace_deadline - now; }

 private:
  struct PendingWish {
    Departure departure;
    MonoTime grace_deadline;  // SIGKILL for the workers
    bool drain_me = false;
    MonoTime patience_ends;
  };

  bool is_named() const { return stop_at_ && stop_at_->step != kStopStepOpen; }

  std::optional<StopAt> stop_at_;
  std::optional<PendingWish> wish_;
};

}  // namespace muster::agent

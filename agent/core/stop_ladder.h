// How the workers of a node are stopped: a ladder of rungs, each with a deadline that leads to the
// next.
//
//   kSignalled    the signal that asked for it, to each worker's process group; until the grace
//                 ends. A worker that handles SIGTERM or a user signal gets it alone, and its group
//                 once it has ended or half of the grace is over. Those that survive rounds are
//                 asked first (worker_group.h): half of --shutdown_timeout is for letting go, or
//                 the grace if that is less (after the loss of a node); who has not by then is
//                 signalled like any other
//   kKilled       SIGKILL; what outlives it for `unkillable_timeout` is named and not waited for
//   kLingering    only after a success: what the workers started may end by itself
//   kSweeping     SIGTERM to every descendant that is left, wherever it moved
//   kSweepKilled  SIGKILL to those; what outlives it is named and not waited for either
//
// A second interrupt, or a grace that is over, skips the rungs that wait.
//
// Threads: compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/turn.h"
#include "agent/core/worker_group.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// What follows once every worker of the round, and what they left behind, has ended.
enum class After {
  kWait,    // they all succeeded
  kAsk,     // one failed: the rendezvous decides between a restart and the end
  kJoin,    // the next round
  kLeave,   // this node ends by its own decision
  kFinish,  // the job has ended
};

class StopLadder {
 public:
  enum class Rung { kSignalled, kKilled, kLingering, kSweeping, kSweepKilled };

  // A round whose workers nobody has signalled begins.
  void Reset() { has_signalled_ = false; }
  void Aim(After after) { after_ = after; }
  // Aims as Aim(kLeave) does, unless the job has ended, which stays the end.
  void AimToLeave();
  void SetGrace(MonoTime deadline) { grace_deadline_ = deadline; }

  // The first rung. `kept_for`: why another round is expected, for those who go on in it; empty:
  // none is. Who has nobody to signal goes straight to what they left behind.
  void Start(int first_signal, const std::string& kept_for, WorkerGroup& workers, Turn& turn);
  // The first rung, for workers that awaited a round which does not come; the spared stay.
  void StartForParked(std::vector<LocalRank> spared, Turn& turn);
  // The second rung, for one that has just been killed alone and is waited for: the next rung names
  // it if it outlives that. `is_climbing`: a stop is under way, which goes on from where it is, if
  // it still waits for workers.
  void StartKilled(bool is_climbing, Turn& turn);
  // One that was waited for no more is waited for again.
  void StartAgain(Turn& turn);
  // The deadline of a rung has come. True: the ground is reached.
  //
  // One deadline, one rung: nothing here waits, and each rung leads to a later one, so a stop ends
  // after the sum of its deadlines even if no process ever does. This process may itself not have
  // run (a suspended machine): what would be given up more than a second too late is given another,
  // in which the ends of that time are told.
  bool Climb(WorkerGroup& workers, Turn& turn);
  // The workers have ended; what they started may not have. After a success it may finish in its
  // own time, and is named once. After anything else, or in haste, it is stopped: its output and
  // ports belong to the round that is over.
  void BeginSweep(Turn& turn);
  // Another end than success has come up: what was left to end by itself is ended.
  void EndLingering(Turn& turn);
  void NoteLeftovers(const DescendantsNamed& event, Turn& turn);
  // A second interrupt. True: the rung that waits is over.
  bool Hurry(MonoTime now);
  bool is_in_haste() const { return in_haste_; }
  // Nobody is left, or nobody that could be waited for.
  void ReachGround();

  After after() const { return after_; }
  bool awaits_workers() const { return rung_ < Rung::kLingering; }
  bool has_killed() const { return rung_ == Rung::kKilled; }
  MonoTime deadline() const { return rung_deadline_; }
  // A signal of ours has reached the workers of this round, or is on its way.
  bool has_signalled() const { return has_signalled_; }
  // After our own signal an end is no failure, unless the program crashed by itself while it was
  // being stopped, or has something to say by it.
  bool Counts(const WorkerFailure& failure, bool is_stopping) const;

 private:
  void KillWorkers(WorkerGroup& workers, Turn& turn);
  void GiveUpWorkers(WorkerGroup& workers, Turn& turn);
  // Asks once on a rung what is left, and waits for the answer until `deadline`. False: it has
  // asked before.
  bool AskForNames(MonoTime deadline, Turn& turn);

  After after_ = After::kWait;
  Rung rung_ = Rung::kSignalled;
  MonoTime rung_deadline_ = MonoTime::InfiniteFuture();
  MonoTime grace_deadline_ = MonoTime::InfiniteFuture();
  bool has_signalled_ = false;
  bool in_haste_ = false;
  std::optional<std::string> leftovers_;  // of this rung, once they are to be named
};

}  // namespace muster::agent

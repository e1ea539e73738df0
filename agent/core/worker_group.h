// The workers of one node in one round, what each has said of itself, and how they ended.
//
// Some outlive a round. A program that survives rounds is told that its round is over, lets go of
// it, and awaits the next in the same process: parked. For the ladder (stop_ladder.h) a parked
// worker is as good as gone; the node then joins again, and the next round's assignment goes to
// those that are parked, and to new processes in the place of those that died. A server that has
// lost its state starts the job over: then nothing is kept.
//
// A worker that was kept says hello in the next round as a new one does. One that does not come in
// time is ended, since all ranks of the round would wait for it.
//
// Threads: compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/turn.h"
#include "proto/base/ids.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class WorkerGroup {
 public:
  // A new round: parked workers have their places in it, and the others start. Returns those that
  // were kept, which no process is started for.
  std::vector<LocalRank> Begin(const Assignment& assignment);
  // Forgets the workers that are not parked, and the failures.
  void LeaveRound();

  // The events of another round than this group's are not for it.
  bool IsOf(Round round) const { return round == round_; }
  // True: it was started in the place of one that was kept, for a round that has been stopped
  // since. It awaits none, and is not kept any more.
  bool Note(const WorkerSpawned& event, Turn& turn);
  void Note(const WorkerGreeted& event);
  struct News {
    bool begins_to_obey = false;
    bool has_strayed = false;  // it was parked, and is not any more
  };
  News Note(const WorkerPromised& event);
  void NoteEnd(LocalRank local_rank);
  void NoteEndOfAll();
  // It ended when it should not have, `failure.age` ago.
  void NoteFailure(const WorkerFailure& failure, MonoTime now);
  // Those that still run have outlived SIGKILL. They are reported, and the node takes no part in
  // the next round, since one of them may hold its device.
  void NoteUnkillable();

  int NumAlive() const;
  // Those that are neither parked nor dead.
  int NumRunning() const;
  bool AllObey() const;
  // The furthest step that any has begun (-1: none), if each that lives has promised to begin none
  // beyond.
  std::optional<int64_t> StopFloor() const;
  void ForgetStopFloors();
  bool has_failed() const { return !failures_.empty(); }
  // The failures in the order in which they came up, with their ages as of `now`.
  std::vector<WorkerFailure> FailuresAt(MonoTime now) const;
  // The same, as they were reported to us.
  std::vector<WorkerFailure> Failures() const;
  const std::vector<int>& unkillable_pids() const { return unkillable_pids_; }
  // "; stopping the other 3 on node1; 1 on node1 would go on in the next round"
  std::string WhatFollows(const std::string& node) const;

  // --- Workers that outlive a round
  // Asks those that survive rounds to await the next: they are kept.
  void KeepSurvivors(const std::string& reason, Turn& turn);
  std::vector<LocalRank> Kept() const;
  // Signals those that were kept and have not let go of their round, like the others; `group_at` as
  // in SignalWorkers. False: there are none.
  bool GiveUpSlow(MonoTime group_at, Turn& turn);
  // The parked stay kept; who was kept and has not let go is kept no more.
  void KeepParkedOnly();
  // These are not kept any more. Returns the others, which the signal spares.
  std::vector<LocalRank> Release(const std::vector<LocalRank>& released);
  // The next time at which one that was kept must have come to this round.
  MonoTime HelloDeadline() const;
  void EndThoseThatDoNotCome(Turn& turn);

 private:
  struct Worker {
    LocalRank local_rank;
    int pid = 0;
    bool alive = true;
    bool obeys_stop = false;
    std::optional<int64_t> stop_floor;
    bool survives = false;
    bool awaits_round = false;
    bool is_kept = false;             // told that its round is over, and not signalled since
    bool has_former_promise = false;  // what it promised is of the round before
    // It was kept, and has its place in this round.
    MonoTime hello_due = MonoTime::InfiniteFuture();
    // No more is expected of it in its round.
    bool is_parked() const { return alive && is_kept && awaits_round; }
  };
  struct TimedFailure {
    MonoTime at;
    WorkerFailure failure;
  };

  std::vector<Worker> workers_;         // of `round_`; between rounds, those that are parked
  Round round_ = kNoRound;              // the last in which this node ran workers
  std::vector<TimedFailure> failures_;  // of `round_`
  std::vector<int> unkillable_pids_;
};

}  // namespace muster::agent

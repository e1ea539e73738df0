// The hang watches of the jobs of one server: each job of which an agent says a word of its watch
// has one, over the members of the round that runs.
//
// Threads: compatible; pure (JobLoop calls it on its loop thread).
#pragma once

#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "rendezvous/core/job_table.h"
#include "rendezvous/hangs/judge/job_watch.h"
#include "rendezvous/status/job_progress.h"

namespace muster::rendezvous {

class JobWatches {
 public:
  using Orders = hangs::JobWatch::Orders;

  Orders OnWord(const JobTable& table, const JobKey& job, Incarnation from, hangs::NodeWord word,
                MonoTime now);
  // The orders of all jobs whose time has come.
  std::vector<std::pair<JobKey, Orders>> Tick(const JobTable& table, MonoTime now);
  // What its agents have told; nullptr: nothing, or the job has gone. Valid until the next call.
  const status::JobProgress* FindProgress(const JobTable& table, const JobKey& job, MonoTime now);
  MonoTime NextDeadline() const {
    return deadlines_.empty() ? MonoTime::InfiniteFuture() : deadlines_.begin()->first;
  }

 private:
  struct Watch {
    hangs::JobWatch watch;
    status::JobProgress progress;
    // The round that it watches: an instance begins again with round 0.
    Round round = kNoRound;
    MonoTime running_since;
    MonoTime deadline;
  };
  using Watches = absl::btree_map<JobKey, Watch>;
  // False if the job has gone.
  static bool Follow(Watch& watch, const JobTable& table, const JobKey& job, MonoTime now);

  void Reschedule(Watches::iterator watch, MonoTime now);
  void Erase(Watches::iterator watch);

  Watches watches_;
  absl::btree_set<std::pair<MonoTime, JobKey>> deadlines_;
};

}  // namespace muster::rendezvous

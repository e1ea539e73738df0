// What becomes of a worker's exit. That of one that has failed is told with what this node knows of
// the reason, once its last words have been read; if it has aborted, the watch asks at once what
// the ranks called last. That of one that has succeeded is told at once, unless people follow its
// log files: they see the end of those before.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "agent/agent_options.h"
#include "agent/console/log_pump.h"
#include "agent/core/agent_events.h"
#include "agent/guardian/guardian.h"
#include "agent/machine/kernel_log.h"
#include "agent/machine/oom_watch.h"
#include "agent/sight/log_followers.h"
#include "agent/watch/hang_watch.h"
#include "agent/workers/worker_roster.h"

namespace muster::agent {

class WorkerExits {
 public:
  // What it asks and tells; all of it outlives this, and is used in calls of this class and in
  // callbacks that the pump, the watch and the followers drop when they go.
  struct Parts {
    const AgentOptions& options;
    WorkerRoster& roster;
    LogPump& pump;
    HangWatch& hang_watch;
    LogFollowers& followers;
    std::function<void(WorkerExited)> on_exit;  // for the core
  };
  explicit WorkerExits(Parts parts);

  void StartRound();
  // Those of processes that are not in the roster are nobody's concern.
  void OnSpawnFailed(uint64_t worker_id, const absl::Status& status);
  void OnExited(const WorkerExit& exit);
  // The kernel does not let it go: its exit, should it come, is nobody's concern any more.
  void OnGivenUp(uint64_t worker_id, const std::string& why);
  // A worker of the round has closed its connection without a goodbye.
  void OnSilentLeave(LocalRank worker);

  // The kernel's lines since the round began.
  const std::vector<std::string>& KernelLines() { return kernel_log_.Lines(); }

 private:
  void OnSuccess(const RunningWorker& worker);
  void WarnOfSilentEnd(LocalRank worker);
  // Adds what `worker` has said to `failure`, and what is known of it, and tells the core: once its
  // files have been read.
  void TellFailure(const RunningWorker& worker, WorkerFailure failure);
  // Somebody follows the log files, and is to see the last lines of a worker that ends.
  bool IsFollowed() const { return parts_.followers.AreThere(MonoNow()); }

  const Parts parts_;
  OomWatch oom_watch_;
  KernelLog kernel_log_;
  // Workers of this round that closed their connection without a goodbye, and that exited with 0.
  absl::btree_set<LocalRank> left_silently_;
  absl::btree_set<LocalRank> ended_with_zero_;
};

}  // namespace muster::agent

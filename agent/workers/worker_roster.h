// The workers on this node: those that live, each with what is known of its process, and the place
// of the node in the round that they are of.
//
// Threads: compatible.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "proto/base/membership.h"

namespace muster::agent {

struct RunningWorker {
  uint64_t id = 0;  // among all workers and hooks of this agent
  LocalRank local_rank;
  Rank rank;
  Round round;
  pid_t pid = 0;  // 0: it has not been started yet
  std::string error_file;
  std::string why_ended;     // by the watch; empty: not by it
  std::vector<int> signals;  // ours, so far
  bool is_kept = false;      // from an earlier round, and has not heard of its place in this one
  uint64_t start_time = 0;   // of the process, as ProcessInfo has it; 0: it is not known
};

// Pointers to workers are valid until one is added, taken or forgotten.
class WorkerRoster {
 public:
  // Workers in `kept` go on as those of this round; others that still live stay of theirs.
  void StartRound(Assignment assignment, const std::vector<LocalRank>& kept);
  // Nobody's before the first round.
  const Assignment& assignment() const { return assignment_; }
  // The process of the worker of this round is that of an earlier one, also if it has died since.
  bool IsKept(LocalRank local_rank) const { return kept_.contains(local_rank); }

  // An id for a new process; one that is no worker gets one, too.
  uint64_t NewId() { return next_id_++; }
  // A worker of this round, with an id of its own.
  RunningWorker& Add(LocalRank local_rank, std::string error_file = "");
  // Pointers are null where there is none.
  RunningWorker* Find(uint64_t id);
  RunningWorker* FindByPid(pid_t pid);
  RunningWorker* FindByLocalRank(LocalRank local_rank);  // of any round
  std::optional<RunningWorker> Take(uint64_t id);
  void Forget() { workers_.clear(); }
  // Each but the spared will have got it from us.
  void NoteSignal(int signal, const std::vector<LocalRank>& spared);

  // All, of any round, by id.
  const absl::btree_map<uint64_t, RunningWorker>& workers() const { return workers_; }
  std::vector<LocalRank> LocalRanks() const;
  // The processes that are known.
  std::vector<pid_t> Pids() const;

 private:
  template <typename Predicate>
  RunningWorker* FindIf(Predicate is_it);

  Assignment assignment_;
  absl::btree_map<uint64_t, RunningWorker> workers_;
  uint64_t next_id_ = 1;
  absl::btree_set<LocalRank> kept_;
};

}  // namespace muster::agent

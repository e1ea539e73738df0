#include "agent/workers/worker_roster.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace muster::agent {

void WorkerRoster::StartRound(Assignment assignment, const std::vector<LocalRank>& kept) {
  assignment_ = std::move(assignment);
  kept_.clear();
  for (auto& [unused, worker] : workers_) {
    if (!absl::c_linear_search(kept, worker.local_rank)) continue;
    kept_.insert(worker.local_rank);
    worker.round = assignment_.round;
    worker.rank = Rank(assignment_.first_rank.value() + worker.local_rank.value());
    worker.is_kept = true;
  }
}

RunningWorker& WorkerRoster::Add(LocalRank local_rank, std::string error_file) {
  const uint64_t id = NewId();
  return workers_[id] = {.id = id,
                         .local_rank = local_rank,
                         .rank = Rank(assignment_.first_rank.value() + local_rank.value()),
                         .round = assignment_.round,
                         .error_file = std::move(error_file)};
}

RunningWorker* WorkerRoster::Find(uint64_t id) {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

template <typename Predicate>
RunningWorker* WorkerRoster::FindIf(Predicate is_it) {
  const auto found =
      absl::c_find_if(workers_, [&](const auto& entry) { return is_it(entry.second); });
  return found == workers_.end() ? nullptr : &found->second;
}

RunningWorker* WorkerRoster::FindByPid(pid_t pid) {
  return FindIf([&](const RunningWorker& worker) { return worker.pid == pid; });
}

RunningWorker* WorkerRoster::FindByLocalRank(LocalRank local_rank) {
  return FindIf([&](const RunningWorker& worker) { return worker.local_rank == local_rank; });
}

std::optional<RunningWorker> WorkerRoster::Take(uint64_t id) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return std::nullopt;
  RunningWorker worker = std::move(found->second);
  workers_.erase(found);
  return worker;
}

void WorkerRoster::NoteSignal(int signal, const std::vector<LocalRank>& spared) {
  for (auto& [unused, worker] : workers_) {
    if (!absl::c_linear_search(spared, worker.local_rank)) worker.signals.push_back(signal);
  }
}

std::vector<LocalRank> WorkerRoster::LocalRanks() const {
  std::vector<LocalRank> live;
  for (const auto& [unused, worker] : workers_) live.push_back(worker.local_rank);
  return live;
}

std::vector<pid_t> WorkerRoster::Pids() const {
  std::vector<pid_t> pids;
  for (const auto& [unused, worker] : workers_) {
    if (worker.pid != 0) pids.push_back(worker.pid);
  }
  return pids;
}

}  // namespace muster::agent

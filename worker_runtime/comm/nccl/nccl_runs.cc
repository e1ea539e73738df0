#include "worker_runtime/comm/nccl/nccl_runs.h"

#include <utility>

namespace muster::comm {

NcclRun& NcclRuns::Add(std::unique_ptr<NcclRun> run) {
  running_.push_back({.run = std::move(run), .since = MonoNow()});
  return newest();
}

NcclRun& NcclRuns::BeginPosting(std::unique_ptr<NcclRun> run,
                                std::optional<LaunchOrder::Place> place) {
  is_posting_ = true;
  place_ = place;
  return Add(std::move(run));
}

std::optional<LaunchOrder::Place> NcclRuns::EndPosting() {
  is_posting_ = false;
  return std::exchange(place_, std::nullopt);
}

std::unique_ptr<NcclRun> NcclRuns::TakeNewest() {
  std::unique_ptr<NcclRun> run = std::move(running_.back().run);
  running_.pop_back();
  return run;
}

NcclRun* NcclRuns::OldestOnStream() {
  return running_.size() > (is_posting_ ? 1 : 0) ? running_.front().run.get() : nullptr;
}

std::unique_ptr<NcclRun> NcclRuns::TakeOldest() {
  std::unique_ptr<NcclRun> run = std::move(running_.front().run);
  running_.pop_front();
  return run;
}

const Call* NcclRuns::FindLate(MonoTime now) const {
  for (const Running& each : running_) {
    if (each.run->call().deadline <= now) return &each.run->call();
  }
  return nullptr;
}

const Call* NcclRuns::FindSuspicious(MonoTime now, absl::Duration limit) {
  if (running_.empty()) return nullptr;
  Running& oldest = running_.front();
  if (oldest.is_suspected || now < oldest.since + limit) return nullptr;
  oldest.is_suspected = true;
  return &oldest.run->call();
}

}  // namespace muster::comm

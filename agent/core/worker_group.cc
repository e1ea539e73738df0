#include "agent/core/worker_group.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace muster::agent {

std::vector<LocalRank> WorkerGroup::Begin(const Assignment& assignment) {
  round_ = assignment.round;
  failures_.clear();
  unkillable_pids_.clear();
  std::vector<LocalRank> kept = Kept();
  const std::vector<Worker> parked = std::exchange(workers_, {});
  for (int i = 0; i < assignment.local_world_size; ++i)
    workers_.push_back({.local_rank = LocalRank(i)});
  for (const Worker& worker : parked) {
    if (!worker.is_parked()) continue;
    // Until it has heard of this round it still survives, and awaits one.
    Worker& place = workers_.at(worker.local_rank.value());
    place.pid = worker.pid;
    place.survives = place.awaits_round = place.has_former_promise = true;
  }
  return kept;
}

void WorkerGroup::LeaveRound() {
  std::erase_if(workers_, [](const Worker& worker) { return !worker.is_parked(); });
  failures_.clear();
}

bool WorkerGroup::Note(const WorkerSpawned& event, Turn& turn) {
  bool is_late = false;
  for (Worker& worker : workers_) {
    if (worker.local_rank != event.local_rank) continue;
    const bool was_parked = worker.is_parked();
    // The kept process has ended since, so another was started here, which has promised nothing.
    // What was promised in this round stays: a worker's socket may be quicker than the guardian's
    // answer.
    const bool is_another = worker.pid != event.pid;
    if (worker.has_former_promise && is_another) worker.survives = worker.awaits_round = false;
    worker.pid = event.pid;
    if (worker.awaits_round) worker.hello_due = turn.now + turn.options.hello_timeout;
    is_late = was_parked && !worker.is_parked();
    if (is_late) worker.is_kept = false;
  }
  return is_late;
}

void WorkerGroup::Note(const WorkerGreeted& event) {
  for (Worker& worker : workers_) {
    if (worker.local_rank == event.local_rank) worker.hello_due = MonoTime::InfiniteFuture();
  }
}

WorkerGroup::News WorkerGroup::Note(const WorkerPromised& event) {
  News news;
  for (Worker& worker : workers_) {
    if (worker.local_rank != event.local_rank) continue;
    const bool was_parked = worker.is_parked();
    worker.has_former_promise = false;
    news.begins_to_obey = event.obeys && !worker.obeys_stop;
    worker.obeys_stop = event.obeys;
    worker.stop_floor = event.floor;
    worker.survives = event.survives;
    worker.awaits_round = event.awaits_round;
    news.has_strayed = was_parked && !worker.is_parked();
  }
  return news;
}

void WorkerGroup::NoteEnd(LocalRank local_rank) {
  for (Worker& worker : workers_) {
    if (worker.local_rank == local_rank) worker.alive = false;
  }
}

void WorkerGroup::NoteEndOfAll() {
  for (Worker& worker : workers_) worker.alive = false;
}

void WorkerGroup::NoteFailure(const WorkerFailure& failure, MonoTime now) {
  failures_.push_back({now - failure.age, failure});
}

void WorkerGroup::NoteUnkillable() {
  for (const Worker& worker : workers_) {
    if (worker.alive && !worker.is_parked()) unkillable_pids_.push_back(worker.pid);
  }
}

int WorkerGroup::NumAlive() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.alive; }));
}

int WorkerGroup::NumRunning() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const Worker& w) { return w.alive && !w.is_parked(); }));
}

bool WorkerGroup::AllObey() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& w) { return !w.alive || w.obeys_stop; });
}

std::optional<int64_t> WorkerGroup::StopFloor() const {
  int64_t furthest = -1;
  for (const Worker& worker : workers_) {
    if (worker.alive && !worker.stop_floor) return std::nullopt;
    furthest = std::max(furthest, worker.stop_floor.value_or(-1));
  }
  return furthest;
}

void WorkerGroup::ForgetStopFloors() {
  for (Worker& worker : workers_) worker.stop_floor.reset();
}

std::vector<WorkerFailure> WorkerGroup::FailuresAt(MonoTime now) const {
  std::vector<WorkerFailure> failures = Failures();
  for (size_t i = 0; i < failures.size(); ++i) failures[i].age = now - failures_[i].at;
  return failures;
}

std::vector<WorkerFailure> WorkerGroup::Failures() const {
  std::vector<WorkerFailure> failures;
  for (const TimedFailure& failed : failures_) failures.push_back(failed.failure);
  return failures;
}

std::string WorkerGroup::WhatFollows(const std::string& node) const {
  std::string text;
  const auto num_survivors = std::count_if(workers_.begin(), workers_.end(),
                                           [](const Worker& w) { return w.alive && w.survives; });
  if (const auto num_stopped = NumAlive() - num_survivors; num_stopped > 0) {
    absl::StrAppend(&text, "; stopping the other ", num_stopped, " on ", node);
  }
  if (num_survivors > 0) {
    absl::StrAppend(&text, "; ", num_survivors, " on ", node, " would go on in the next round");
  }
  return text;
}

void WorkerGroup::KeepSurvivors(const std::string& reason, Turn& turn) {
  for (Worker& worker : workers_) worker.is_kept = worker.alive && worker.survives;
  if (!Kept().empty()) turn.Do(TellRoundOver{.is_followed = true, .reason = reason});
}

std::vector<LocalRank> WorkerGroup::Kept() const {
  std::vector<LocalRank> kept;
  for (const Worker& worker : workers_) {
    if (worker.alive && worker.is_kept) kept.push_back(worker.local_rank);
  }
  return kept;
}

bool WorkerGroup::GiveUpSlow(MonoTime group_at, Turn& turn) {
  std::vector<LocalRank> slow, spared;
  for (Worker& worker : workers_) {
    const bool is_slow = worker.alive && worker.is_kept && !worker.awaits_round;
    (is_slow ? slow : spared).push_back(worker.local_rank);
    if (is_slow) worker.is_kept = false;
  }
  if (slow.empty()) return false;
  const auto append = [](std::string* text, LocalRank rank) {
    absl::StrAppend(text, rank.value());
  };
  turn.Say(
      Announce::Level::kWarning, "survivors_slow",
      absl::StrCat("local rank ", absl::StrJoin(slow, ", ", append), " on ", turn.options.node.name,
                   " would go on in the next round, and has not let go of this one; stopping it"));
  turn.Do(SignalWorkers{.signal = SIGTERM, .spared = std::move(spared), .group_at = group_at});
  return true;
}

void WorkerGroup::KeepParkedOnly() {
  for (Worker& worker : workers_) worker.is_kept = worker.is_parked();
}

std::vector<LocalRank> WorkerGroup::Release(const std::vector<LocalRank>& released) {
  std::vector<LocalRank> spared;
  for (Worker& worker : workers_) {
    if (std::find(released.begin(), released.end(), worker.local_rank) != released.end()) {
      worker.is_kept = false;
    } else {
      spared.push_back(worker.local_rank);
    }
  }
  return spared;
}

MonoTime WorkerGroup::HelloDeadline() const {
  MonoTime next = MonoTime::InfiniteFuture();
  for (const Worker& worker : workers_) {
    if (worker.alive) next = Min(next, worker.hello_due);
  }
  return next;
}

void WorkerGroup::EndThoseThatDoNotCome(Turn& turn) {
  for (Worker& worker : workers_) {
    if (!worker.alive || turn.now < worker.hello_due) continue;
    worker.hello_due = MonoTime::InfiniteFuture();
    turn.Do(EndWorker{
        worker.local_rank,
        absl::StrCat("it awaited this round, was given its place in it, and has not come within ",
                     absl::FormatDuration(turn.options.hello_timeout),
                     ": it hangs, or is stopped")});
  }
}

}  // namespace muster::agent

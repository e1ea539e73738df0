// Workers that outlive a round. A program that survives rounds is told that its round is over, lets
// go of it, and awaits the next in the same process: parked. For the ladder (agent_core_stop.cc) a
// parked worker is as good as gone; the node then joins again, and the next round's assignment goes
// to those that are parked, and to new processes in the place of those that died.
//
// Half of --shutdown_timeout is for letting go, or the grace if that is less (after the loss of a
// node); who has not by then is signalled like any other. Where no round follows, those that are
// parked climb the ladder themselves. A server that has lost its state begins the job anew: then
// nothing is kept.
//
// A worker that was kept says hello in the next round as a new one does. One that does not come in
// time is ended, since all ranks of the round would wait for it.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/agent_core.h"

namespace muster::agent {

void AgentCore::On(const WorkerPromised& event, MonoTime now, Effects& out) {
  if (event.round != workers_round_) return;
  const std::optional<int64_t> before = StopFloor();
  bool has_strayed = false;
  for (Worker& worker : workers_) {
    if (worker.local_rank != event.local_rank) continue;
    const bool begins_to_obey = event.obeys && !worker.obeys_stop;
    const bool was_parked = worker.is_parked();
    worker.obeys_stop = event.obeys;
    worker.stop_floor = event.floor;
    worker.survives = event.survives;
    worker.awaits_round = event.awaits_round;
    has_strayed = was_parked && !worker.is_parked();
    if (begins_to_obey && stop_at_ && phase_ == NodePhase::kRunning) TellWorkersOfStop(out);
  }
  if (StopFloor() != before && phase_ == NodePhase::kRunning) Report(now, out);
  switch (phase_) {
    case NodePhase::kRunning:
      return;
    case NodePhase::kStopping:
      if (NumRunning() == 0 && rung_ < Rung::kLingering) BeginSweep(now, out);
      // Waited for once more: it has heard of this round after all, and must let go of it, or its
      // connection broke.
      if (has_strayed && rung_ >= Rung::kLingering) {
        grace_deadline_ = now + options_.settings.shutdown_timeout;
        rung_ = Rung::kSignalled;
        rung_deadline_ = now + options_.settings.shutdown_timeout / 2;
      }
      return;
    default:
      // Its connection broke, so it would not hear of the next round: its end is waited for, and
      // the others stay.
      if (!has_strayed) return;
      after_ = phase_ == NodePhase::kReporting ? After::kAsk : After::kJoin;
      EndParked({event.local_rank}, now, out);
  }
}

void AgentCore::On(const WorkerGreeted& event, MonoTime, Effects&) {
  if (event.round != workers_round_) return;
  for (Worker& worker : workers_) {
    if (worker.local_rank == event.local_rank) worker.hello_due = MonoTime::InfiniteFuture();
  }
}

MonoTime AgentCore::HelloDeadline() const {
  MonoTime next = MonoTime::InfiniteFuture();
  if (phase_ != NodePhase::kRunning) return next;
  for (const Worker& worker : workers_) {
    if (worker.alive) next = Min(next, worker.hello_due);
  }
  return next;
}

void AgentCore::EndThoseThatDoNotCome(MonoTime now, Effects& out) {
  if (now < HelloDeadline()) return;
  for (Worker& worker : workers_) {
    if (!worker.alive || now < worker.hello_due) continue;
    worker.hello_due = MonoTime::InfiniteFuture();
    out.push_back(EndWorker{
        worker.local_rank,
        absl::StrCat("it awaited this round, was given its place in it, and has not come within ",
                     absl::FormatDuration(options_.hello_timeout), ": it hangs, or is stopped")});
  }
}

std::vector<LocalRank> AgentCore::Kept() const {
  std::vector<LocalRank> kept;
  for (const Worker& worker : workers_) {
    if (worker.alive && worker.is_kept) kept.push_back(worker.local_rank);
  }
  return kept;
}

void AgentCore::KeepSurvivors(const std::string& reason, Effects& out) {
  for (Worker& worker : workers_) worker.is_kept = worker.alive && worker.survives;
  if (!Kept().empty()) out.push_back(TellRoundOver{.is_followed = true, .reason = reason});
}

bool AgentCore::GiveUpSlowSurvivors(MonoTime now, Effects& out) {
  if (now >= grace_deadline_) return false;
  std::vector<LocalRank> slow, spared;
  for (Worker& worker : workers_) {
    const bool is_slow = worker.alive && worker.is_kept && !worker.awaits_round;
    (is_slow ? slow : spared).push_back(worker.local_rank);
    if (is_slow) worker.is_kept = false;
  }
  if (slow.empty()) return false;
  rung_deadline_ = grace_deadline_;
  out.push_back(Announce{
      Announce::Level::kWarning, "survivors_slow",
      absl::StrCat("local rank ",
                   absl::StrJoin(slow, ", ",
                                 [](std::string* text, LocalRank rank) {
                                   absl::StrAppend(text, rank.value());
                                 }),
                   " on ", options_.node.name,
                   " would go on in the next round, and has not let go of this one; stopping it")});
  out.push_back(SignalWorkers{.signal = SIGTERM, .spared = std::move(spared)});
  return true;
}

bool AgentCore::EndSurvivors(MonoTime now, Effects& out) {
  const std::vector<LocalRank> kept = Kept();
  if (kept.empty()) return false;
  const std::string reason = after_ == After::kFinish && outcome_ ? outcome_->reason
                             : departure_                         ? departure_->reason
                                                                  : "the job begins anew";
  out.push_back(TellRoundOver{.is_followed = false, .reason = reason});
  EndParked(kept, now, out);
  return true;
}

void AgentCore::EndParked(const std::vector<LocalRank>& ended, MonoTime now, Effects& out) {
  std::vector<LocalRank> spared;
  for (Worker& worker : workers_) {
    if (std::find(ended.begin(), ended.end(), worker.local_rank) != ended.end()) {
      worker.is_kept = false;
    } else {
      spared.push_back(worker.local_rank);
    }
  }
  if (phase_ != NodePhase::kStopping) Enter(NodePhase::kStopping);
  ladder_started_ = true;
  grace_deadline_ = interrupted_twice_ ? now : now + options_.settings.shutdown_timeout;
  rung_ = Rung::kSignalled;
  rung_deadline_ = grace_deadline_;
  out.push_back(SignalWorkers{.signal = SIGTERM, .spared = std::move(spared)});
}

}  // namespace muster::agent

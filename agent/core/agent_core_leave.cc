// How a node leaves in good order: after the one step at which all ranks of the round stop. The
// server names it (rendezvous/core/stop_step.h); this passes it on to the workers, and reports how
// far they are.
//
// A node that is told to end by SIGTERM, as by a scheduler that takes it back, asks for such a step
// first, if all its workers obey; so does one whose time will be up soon, or that gets a user
// signal which --signals_to_handle names. Half of the grace is for agreeing on it, and all but its
// last seconds for leaving after it; then the stop ladder (agent_core_stop.cc) is climbed as ever.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_core.h"
#include "proto/base/process_end.h"

namespace muster::agent {

void AgentCore::Obey(const StopAt& at, MonoTime now, Effects& out) {
  if (at.round != round_ || phase_ != NodePhase::kRunning || stop_at_ == at) return;
  const bool is_named = at.step != kStopStepOpen;
  const bool is_news = !stop_at_ || is_named != (stop_at_->step != kStopStepOpen);
  stop_at_ = at;
  if (wish_ && is_named) {
    wish_->patience_ends =
        std::max(wish_->patience_ends, wish_->grace_deadline - options_.lost_peer_grace);
  }
  if (is_news) {
    out.push_back(Announce{
        Announce::Level::kInfo, is_named ? "stop_step" : "stop_asked",
        is_named
            ? absl::StrCat("every rank leaves after step ", at.step, " (", at.reason, ")")
            : absl::StrCat(at.reason, "; the ranks agree on the step after which they leave")});
  }
  TellWorkersOfStop(out);
  if (StopFloor()) Report(now, out);
}

void AgentCore::TellWorkersOfStop(Effects& out) const {
  const bool is_named = stop_at_->step != kStopStepOpen;
  out.push_back(TellStop{{.is_stopping = true,
                          .step = is_named ? std::optional(stop_at_->step) : std::nullopt,
                          .reason = stop_at_->reason}});
}

void AgentCore::WithdrawStop(Effects& out) {
  if (!stop_at_ || stop_at_->step != kStopStepOpen) return;
  stop_at_.reset();
  out.push_back(TellStop{});
}

std::optional<int64_t> AgentCore::StopFloor() const {
  if (!stop_at_) return std::nullopt;
  int64_t furthest = -1;
  for (const Worker& worker : workers_) {
    if (worker.alive && !worker.stop_floor) return std::nullopt;
    furthest = std::max(furthest, worker.stop_floor.value_or(-1));
  }
  return furthest;
}

void AgentCore::On(const TimeRunsOut& event, MonoTime now, Effects& out) {
  if (departure_ || wish_ || outcome_) return;
  AskForStopStep({.signal = SIGTERM, .ends_job = true, .reason = event.reason}, now, out);
}

void AgentCore::On(const RoundForbidden& event, MonoTime now, Effects& out) {
  if (departure_ || outcome_) return;
  out.push_back(Announce{Announce::Level::kError, "network_refused", event.departure.reason});
  Depart(event.departure, now, out);
}

bool AgentCore::AskForStopStep(const Departure& departure, MonoTime now, Effects& out) {
  const bool is_heard = link_up_ && unattended_.empty();
  const bool all_obey = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return !worker.alive || worker.obeys_stop;
  });
  if (phase_ != NodePhase::kRunning || !is_heard || !all_obey) return false;
  const absl::Duration grace = options_.settings.shutdown_timeout;
  wish_ = Wish{.departure = departure,
               .grace_deadline = now + grace,
               .drain_me = !departure.ends_job && !options_.hosts_server,
               .patience_ends = now + grace / 2};
  wish_->departure.ends_job |= options_.hosts_server;  // without the server there is no job
  out.push_back(
      Announce{Announce::Level::kInfo, "stop_wished",
               absl::StrCat(departure.reason,
                            "; asking that all ranks stop after the same step (once more stops ",
                            NumAlive(), " workers at once)")});
  Report(now, out);
  return true;
}

void AgentCore::GiveUpWish(MonoTime now, Effects& out) {
  if (NumAlive() > 0) {
    const bool is_named = stop_at_ && stop_at_->step != kStopStepOpen;
    out.push_back(Announce{
        Announce::Level::kInfo, "stop_wish_ends",
        absl::StrCat(
            is_named ? absl::StrCat("not all workers have left after step ", stop_at_->step)
                     : "no step has been agreed on in time",
            "; stopping ", NumAlive(), " of them by ", SignalName(wish_->departure.signal))});
  }
  Depart(wish_->departure, now, out);
}

}  // namespace muster::agent

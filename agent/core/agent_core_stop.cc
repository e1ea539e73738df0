// How the workers of a node are stopped: a ladder of rungs, each with a deadline that leads to the
// next.
//
//   kSignalled    the signal that asked for it, to each worker's process group; until the grace
//   ends.
//                 Those that survive rounds are asked first (agent_core_keep.cc)
//   kKilled       SIGKILL; what outlives it for `unkillable_timeout` is named and not waited for
//   kLingering    only after a success: what the workers started may end by itself
//   kSweeping     SIGTERM to every descendant that is left, wherever it moved
//   kSweepKilled  SIGKILL to those
//
// A second interrupt, or a grace that is over, skips the rungs that wait.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/agent_core.h"
#include "proto/base/exit_codes.h"
#include "proto/base/process_end.h"

namespace muster::agent {
namespace {

int ExitCodeOf(const Departure& departure) {
  if (departure.exit_code != 0) return departure.exit_code;
  return departure.signal != 0 ? ExitCodeOfSignal(departure.signal) : kExitFailure;
}

}  // namespace

// The order matters: the server hears that this node is stopping before the first signal is sent,
// so it has stopped counting on the node whatever the workers do next. A node that has nobody to
// signal goes straight to what they left behind.
void AgentCore::BeginStop(After after, int first_signal, absl::Duration grace, MonoTime now,
                          Effects& out, const std::string& kept_for) {
  after_ = after;
  grace_deadline_ = now + grace;
  Enter(NodePhase::kStopping);
  if (after != After::kWait) Report(now, out);
  if (NumAlive() == 0) {
    BeginSweep(now, out);
    return;
  }
  ladder_started_ = true;
  WithdrawStop(out);
  rung_ = Rung::kSignalled;
  rung_deadline_ = grace_deadline_;
  if (!kept_for.empty()) KeepSurvivors(kept_for, out);
  if (NumRunning() == 0) {
    BeginSweep(now, out);
    return;
  }
  std::vector<LocalRank> kept = Kept();
  const int num_kept = static_cast<int>(kept.size());
  if (num_kept > 0) {
    rung_deadline_ = Min(grace_deadline_, now + options_.settings.shutdown_timeout / 2);
  }
  if (NumAlive() > num_kept) {
    out.push_back(SignalWorkers{.signal = first_signal, .spared = std::move(kept)});
  }
}

// One deadline, one rung: nothing here waits, and each rung leads to a later one, so a stop ends
// after the sum of its deadlines even if no process ever does.
void AgentCore::ClimbLadder(MonoTime now, Effects& out) {
  switch (rung_) {
    case Rung::kSignalled:
      if (GiveUpSlowSurvivors(now, out)) return;
      rung_ = Rung::kKilled;
      rung_deadline_ = now + options_.unkillable_timeout;
      for (Worker& worker : workers_) worker.is_kept = worker.is_parked();
      out.push_back(SignalWorkers{.signal = SIGKILL, .spared = Kept()});
      return;
    case Rung::kKilled:
      // In the kernel for good (a device, a file system). The round must not wait for it. It is
      // reported, and GroundReached takes the node out of the next round, since the process may
      // hold its device.
      for (const Worker& worker : workers_) {
        if (worker.alive && !worker.is_parked()) unkillable_pids_.push_back(worker.pid);
      }
      out.push_back(Announce{
          Announce::Level::kError, "unkillable",
          absl::StrCat(
              "pid ", absl::StrJoin(unkillable_pids_, ", "), " on ", options_.node.name,
              " did not end within ", absl::FormatDuration(options_.unkillable_timeout),
              " of SIGKILL (a device or file system that does not answer?); not waiting for it")});
      BeginSweep(now, out);
      return;
    case Rung::kLingering:
      if (!leftovers_) {
        leftovers_.emplace();
        rung_deadline_ = grace_deadline_;
        out.push_back(NameDescendants{});
        return;
      }
      EndLingering(now, out);
      return;
    case Rung::kSweeping:
      rung_ = Rung::kSweepKilled;
      rung_deadline_ = now + options_.unkillable_timeout;
      out.push_back(SweepDescendants{SIGKILL});
      return;
    case Rung::kSweepKilled:
      out.push_back(
          Announce{Announce::Level::kError, "unkillable",
                   absl::StrCat("a process that the workers left behind on ", options_.node.name,
                                " outlives SIGKILL; not waiting for it")});
      GroundReached(now, out);
      return;
  }
}

// The workers have ended; what they started may not have. After a success it may finish in its own
// time, and is named once. After anything else, or in haste, it is stopped: its output and ports
// belong to the round that is over.
void AgentCore::BeginSweep(MonoTime now, Effects& out) {
  const bool in_haste = interrupted_twice_ || now >= grace_deadline_;
  leftovers_.reset();
  if (after_ == After::kWait && !in_haste) {
    rung_ = Rung::kLingering;
    rung_deadline_ = Min(grace_deadline_, now + options_.leftover_notice);
    out.push_back(AwaitDescendants{});
    return;
  }
  rung_ = in_haste ? Rung::kSweepKilled : Rung::kSweeping;
  rung_deadline_ = in_haste ? now + options_.unkillable_timeout
                            : Min(grace_deadline_, now + options_.lost_peer_grace);
  out.push_back(SweepDescendants{in_haste ? SIGKILL : SIGTERM});
}

void AgentCore::EndLingering(MonoTime now, Effects& out) {
  if (rung_ != Rung::kLingering) return;
  if (leftovers_ && !leftovers_->empty()) {
    out.push_back(Announce{Announce::Level::kWarning, "leftovers_stopped",
                           absl::StrCat("stopping what the workers left running: ", *leftovers_)});
  }
  rung_ = Rung::kSweeping;
  rung_deadline_ = now + options_.lost_peer_grace;
  out.push_back(SweepDescendants{SIGTERM});
}

// Nobody is left, or nobody that could be waited for: on to what the stop was for. That may have
// changed since it began (`after_`): an end of the job that arrives in the middle of a restart
// wins.
void AgentCore::GroundReached(MonoTime now, Effects& out) {
  rung_ = Rung::kSweepKilled;
  rung_deadline_ = MonoTime::InfiniteFuture();
  if (!unkillable_pids_.empty() && after_ == After::kJoin) {
    departure_ = Departure{.reason = absl::StrCat(options_.node.name, " could not end pid ",
                                                  absl::StrJoin(unkillable_pids_, ", "))};
    after_ = After::kLeave;
    Report(now, out);
  }
  const bool is_followed = after_ == After::kAsk || after_ == After::kJoin;
  if (!is_followed && EndSurvivors(now, out)) return;
  switch (after_) {
    case After::kWait:
      Enter(NodePhase::kWaiting);
      Report(now, out);
      return;
    case After::kAsk:
      Enter(NodePhase::kReporting);
      Report(now, out);
      return;
    case After::kJoin:
      JoinAgain(out);
      return;
    case After::kLeave:
      Report(now, out);
      Conclude({.exit_code = ExitCodeOf(*departure_), .reason = departure_->reason}, out);
      return;
    case After::kFinish:
      Conclude(*outcome_, out);
      return;
  }
}

void AgentCore::JoinAgain(Effects& out) {
  if (phase_ != NodePhase::kReserving) Enter(NodePhase::kReserving);
  if (instance_ == Instance()) {  // told that all we knew is stale
    round_ = kNoRound;
    num_nodes_ = 0;
  }
  std::erase_if(workers_, [](const Worker& worker) { return !worker.is_parked(); });
  failures_.clear();
  job_failed_.reset();
  shown_status_.clear();
  out.push_back(ReservePorts{});
}

void AgentCore::Depart(Departure departure, MonoTime now, Effects& out) {
  departure_ = std::move(departure);
  switch (phase_) {
    case NodePhase::kRunning: {
      const int signal = departure_->signal != 0 ? departure_->signal : SIGTERM;
      const absl::Duration grace =
          wish_ ? wish_->grace_deadline - now : options_.settings.shutdown_timeout;
      BeginStop(After::kLeave, signal, grace, now, out);
      return;
    }
    case NodePhase::kStopping:
      if (after_ != After::kFinish) after_ = After::kLeave;
      Report(now, out);
      EndLingering(now, out);
      EndSurvivors(now, out);
      return;
    case NodePhase::kIdle:
      break;
    default:
      Report(now, out);
      after_ = After::kLeave;
      if (EndSurvivors(now, out)) return;
  }
  Conclude({.exit_code = ExitCodeOf(*departure_), .reason = departure_->reason}, out);
}

void AgentCore::EndWith(JobOutcome outcome, MonoTime now, Effects& out) {
  outcome_ = std::move(outcome);
  if (phase_ == NodePhase::kRunning) {
    out.push_back(Announce{Announce::Level::kInfo, "stopping", outcome_->reason});
    BeginStop(After::kFinish, SIGTERM, options_.settings.shutdown_timeout, now, out);
    return;
  }
  if (phase_ == NodePhase::kStopping) {
    after_ = After::kFinish;
    EndLingering(now, out);
    EndSurvivors(now, out);
    return;
  }
  after_ = After::kFinish;
  if (EndSurvivors(now, out)) return;
  Conclude(*outcome_, out);
}

void AgentCore::Conclude(JobOutcome outcome, Effects& out) {
  Enter(NodePhase::kDone);
  out.push_back(ShowStatus{""});
  out.push_back(Finish{std::move(outcome)});
}

}  // namespace muster::agent

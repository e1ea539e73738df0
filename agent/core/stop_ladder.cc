#include "agent/core/stop_ladder.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kNamedWithin = absl::Seconds(1);
// A deadline that comes later than this was missed by this process itself.
constexpr absl::Duration kPunctual = absl::Seconds(1);

// A signal by which a program ends itself, not us.
bool IsCrash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE ||
         signal == SIGILL;
}

// The groups of workers that handle `signal` get it later. An interrupt reaches them at once, as
// the terminal's own would.
MonoTime GroupAt(int signal, MonoTime grace_deadline, MonoTime now) {
  if (signal != SIGTERM && signal != SIGUSR1 && signal != SIGUSR2) return now;
  return now + (grace_deadline - now) / 2;
}

}  // namespace

void StopLadder::AimToLeave() {
  if (after_ != After::kFinish) after_ = After::kLeave;
}

void StopLadder::Start(int first_signal, const std::string& kept_for, WorkerGroup& workers,
                       Turn& turn) {
  if (workers.NumAlive() == 0) {
    BeginSweep(turn);
    return;
  }
  has_signalled_ = true;
  rung_ = Rung::kSignalled;
  rung_deadline_ = grace_deadline_;
  if (!kept_for.empty()) workers.KeepSurvivors(kept_for, turn);
  if (workers.NumRunning() == 0) {
    BeginSweep(turn);
    return;
  }
  std::vector<LocalRank> kept = workers.Kept();
  const int num_kept = static_cast<int>(kept.size());
  if (num_kept > 0) {
    rung_deadline_ = Min(grace_deadline_, turn.now + turn.options.settings.shutdown_timeout / 2);
  }
  if (workers.NumAlive() > num_kept) {
    turn.Do(SignalWorkers{.signal = first_signal,
                          .spared = std::move(kept),
                          .group_at = GroupAt(first_signal, grace_deadline_, turn.now)});
  }
}

void StopLadder::StartForParked(std::vector<LocalRank> spared, Turn& turn) {
  has_signalled_ = true;
  grace_deadline_ = in_haste_ ? turn.now : turn.now + turn.options.settings.shutdown_timeout;
  rung_ = Rung::kSignalled;
  rung_deadline_ = grace_deadline_;
  turn.Do(SignalWorkers{.signal = SIGTERM,
                        .spared = std::move(spared),
                        .group_at = GroupAt(SIGTERM, grace_deadline_, turn.now)});
}

void StopLadder::StartKilled(bool is_climbing, Turn& turn) {
  if (!is_climbing) {
    has_signalled_ = true;
    grace_deadline_ = turn.now + turn.options.settings.shutdown_timeout;
  }
  if (is_climbing && awaits_workers()) return;
  rung_ = Rung::kKilled;
  rung_deadline_ = turn.now + turn.options.unkillable_timeout;
}

void StopLadder::StartAgain(Turn& turn) {
  const absl::Duration grace = turn.options.settings.shutdown_timeout;
  grace_deadline_ = turn.now + grace;
  rung_ = Rung::kSignalled;
  rung_deadline_ = turn.now + grace / 2;
}

bool StopLadder::Climb(WorkerGroup& workers, Turn& turn) {
  const bool gives_up = rung_ == Rung::kKilled || rung_ == Rung::kSweepKilled;
  if (gives_up && turn.now - rung_deadline_ > kPunctual) {
    rung_deadline_ = turn.now + kPunctual;
    return false;
  }
  switch (rung_) {
    case Rung::kSignalled:
      KillWorkers(workers, turn);
      return false;
    case Rung::kKilled:
      GiveUpWorkers(workers, turn);
      return false;
    case Rung::kLingering:
      if (!AskForNames(std::max(grace_deadline_, turn.now + kNamedWithin), turn))
        EndLingering(turn);
      return false;
    case Rung::kSweeping:
      rung_ = Rung::kSweepKilled;
      rung_deadline_ = turn.now + turn.options.unkillable_timeout;
      leftovers_.reset();
      turn.Do(SweepDescendants{SIGKILL});
      return false;
    case Rung::kSweepKilled:
      if (AskForNames(turn.now + kNamedWithin, turn)) return false;
      turn.Say(
          Announce::Level::kError, "unkillable",
          absl::StrCat("SIGKILL does not end what the workers left behind on ",
                       turn.options.node.name, leftovers_->empty() ? "" : ": ", *leftovers_,
                       " (a device or file system that does not answer?); not waiting for it"));
      return true;
  }
  return false;
}

void StopLadder::KillWorkers(WorkerGroup& workers, Turn& turn) {
  if (turn.now < grace_deadline_ &&
      workers.GiveUpSlow(GroupAt(SIGTERM, grace_deadline_, turn.now), turn)) {
    rung_deadline_ = grace_deadline_;
    return;
  }
  rung_ = Rung::kKilled;
  rung_deadline_ = turn.now + turn.options.unkillable_timeout;
  workers.KeepParkedOnly();
  turn.Do(SignalWorkers{.signal = SIGKILL, .spared = workers.Kept()});
}

// The worker is in the kernel for good (a device, a file system). The round must not wait for it.
void StopLadder::GiveUpWorkers(WorkerGroup& workers, Turn& turn) {
  workers.NoteUnkillable();
  turn.Say(
      Announce::Level::kError, "unkillable",
      absl::StrCat(
          "pid ", absl::StrJoin(workers.unkillable_pids(), ", "), " on ", turn.options.node.name,
          " did not end within ", absl::FormatDuration(turn.options.unkillable_timeout),
          " of SIGKILL (a device or file system that does not answer?); not waiting for it"));
  BeginSweep(turn);
}

bool StopLadder::AskForNames(MonoTime deadline, Turn& turn) {
  if (leftovers_) return false;
  leftovers_.emplace();
  rung_deadline_ = deadline;
  turn.Do(NameDescendants{});
  return true;
}

void StopLadder::BeginSweep(Turn& turn) {
  const bool hurries = in_haste_ || turn.now >= grace_deadline_;
  leftovers_.reset();
  if (after_ == After::kWait && !hurries) {
    rung_ = Rung::kLingering;
    rung_deadline_ = Min(grace_deadline_, turn.now + turn.options.leftover_notice);
    turn.Do(AwaitDescendants{});
    return;
  }
  rung_ = hurries ? Rung::kSweepKilled : Rung::kSweeping;
  rung_deadline_ = hurries ? turn.now + turn.options.unkillable_timeout
                           : Min(grace_deadline_, turn.now + turn.options.lost_peer_grace);
  turn.Do(SweepDescendants{hurries ? SIGKILL : SIGTERM});
}

void StopLadder::EndLingering(Turn& turn) {
  if (rung_ != Rung::kLingering) return;
  if (leftovers_ && !leftovers_->empty()) {
    turn.Say(Announce::Level::kWarning, "leftovers_stopped",
             absl::StrCat("stopping what the workers left running: ", *leftovers_));
  }
  rung_ = Rung::kSweeping;
  rung_deadline_ = turn.now + turn.options.lost_peer_grace;
  turn.Do(SweepDescendants{SIGTERM});
}

void StopLadder::NoteLeftovers(const DescendantsNamed& event, Turn& turn) {
  if (!leftovers_) return;
  if (rung_ == Rung::kLingering) rung_deadline_ = grace_deadline_;
  if (event.names.empty()) return;
  leftovers_ = absl::StrJoin(event.names, ", ");
  if (rung_ == Rung::kSweepKilled) rung_deadline_ = turn.now;
  if (rung_ != Rung::kLingering || turn.now >= grace_deadline_) return;
  turn.Say(
      Announce::Level::kInfo, "leftovers",
      absl::StrCat("the workers succeeded and left running: ", *leftovers_, "; waiting up to ",
                   absl::FormatDuration(absl::Ceil(grace_deadline_ - turn.now, absl::Seconds(1))),
                   " for their end (--shutdown_timeout)"));
}

bool StopLadder::Counts(const WorkerFailure& failure, bool is_stopping) const {
  if (!has_signalled_ || ForbidsRestart(failure)) return true;
  return is_stopping && IsCrash(failure.signal);
}

bool StopLadder::Hurry(MonoTime now) {
  in_haste_ = true;
  grace_deadline_ = now;
  return rung_ == Rung::kSignalled || rung_ == Rung::kSweeping;
}

void StopLadder::ReachGround() {
  rung_ = Rung::kSweepKilled;
  rung_deadline_ = MonoTime::InfiniteFuture();
}

}  // namespace muster::agent

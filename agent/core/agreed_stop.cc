#include "agent/core/agreed_stop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/process_end.h"

namespace muster::agent {

bool AgreedStop::Take(const StopAt& at, Turn& turn) {
  if (stop_at_ == at) return false;
  const bool is_news = !stop_at_ || is_named() != (at.step != kStopStepOpen);
  stop_at_ = at;
  if (wish_ && is_named()) {
    wish_->patience_ends =
        std::max(wish_->patience_ends, wish_->grace_deadline - turn.options.lost_peer_grace);
  }
  if (is_news && is_named()) {
    turn.Say(Announce::Level::kInfo, "stop_step",
             absl::StrCat("every rank leaves after step ", at.step, " (", at.reason, ")"));
  } else if (is_news) {
    turn.Say(Announce::Level::kInfo, "stop_asked",
             absl::StrCat(at.reason, "; the ranks agree on the step after which they leave"));
  }
  TellWorkers(turn);
  return true;
}

void AgreedStop::TellWorkers(Turn& turn) const {
  turn.Do(TellStop{{.is_stopping = true,
                    .step = is_named() ? std::optional(stop_at_->step) : std::nullopt,
                    .reason = stop_at_->reason}});
}

void AgreedStop::Withdraw(WorkerGroup& workers, Turn& turn) {
  if (!stop_at_ || is_named()) return;
  stop_at_.reset();
  workers.ForgetStopFloors();
  turn.Do(TellStop{});
}

std::optional<int64_t> AgreedStop::Floor(const WorkerGroup& workers) const {
  return stop_at_ ? workers.StopFloor() : std::nullopt;
}

void AgreedStop::Wish(Departure departure, const WorkerGroup& workers, Turn& turn) {
  const bool hosts_server = turn.options.hosts_server;
  const absl::Duration grace = turn.options.settings.shutdown_timeout;
  turn.Say(Announce::Level::kInfo, "stop_wished",
           absl::StrCat(departure.reason,
                        "; asking that all ranks stop after the same step (once more stops ",
                        workers.NumAlive(), " workers at once)"));
  const bool drain_me = !departure.ends_job && !hosts_server;
  departure.ends_job |= hosts_server;  // without the server there is no job
  wish_ = PendingWish{.departure = std::move(departure),
                      .grace_deadline = turn.now + grace,
                      .drain_me = drain_me,
                      .patience_ends = turn.now + grace / 2};
}

std::optional<StopWish> AgreedStop::Wished() const {
  if (!wish_) return std::nullopt;
  return StopWish{.signal = wish_->departure.signal,
                  .drain_me = wish_->drain_me,
                  .reason = wish_->departure.reason};
}

Departure AgreedStop::GiveUp(const WorkerGroup& workers, Turn& turn) const {
  if (workers.NumAlive() > 0) {
    turn.Say(Announce::Level::kInfo, "stop_wish_ends",
             absl::StrCat(
                 is_named() ? absl::StrCat("not all workers have left after step ", stop_at_->step)
                            : "no step has been agreed on in time",
                 "; stopping ", workers.NumAlive(), " of them by ",
                 SignalName(wish_->departure.signal)));
  }
  return wish_->departure;
}

}  // namespace muster::agent

#include "agent/core/server_contact.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/base/lease.h"

namespace muster::agent {
namespace {

// Unanswered reports to a reachable server that are remembered, for the orphan time-out.
constexpr size_t kMaxUnanswered = 1024;

std::string Tenths(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

}  // namespace

void ServerContact::Change(const LinkChanged& event) {
  is_up_ = event.up;
  detail_ = event.detail;
}

void ServerContact::TakeLease(const LeaseTold& event, Turn& turn) {
  const LeaseSettings before = LeaseByServer(turn.options.lease);
  lease_ = event;
  if (LeaseByServer(turn.options.lease) == before) return;
  turn.Say(
      Announce::Level::kInfo, "lease",
      absl::StrCat("leases last ", absl::FormatDuration(event.duration), " and are renewed every ",
                   absl::FormatDuration(event.renew_interval), " at ", turn.options.server,
                   ", whatever --rdzv_conf says here (", absl::FormatDuration(before.duration),
                   " and ", absl::FormatDuration(before.renew_interval), ")"));
}

LeaseSettings ServerContact::LeaseByServer(const LeaseSettings& own) const {
  if (!lease_) return own;
  return {
      .duration = lease_->duration, .renew_interval = lease_->renew_interval, .margin = own.margin};
}

bool ServerContact::Hear(const Directive& directive) {
  if (directive.term < term_) return false;
  if (directive.term == term_ && directive.revision <= last_revision_) return false;
  term_ = directive.term;
  last_revision_ = directive.revision;
  was_heard_ = true;
  for (; !unanswered_.empty() && unanswered_.front().first <= directive.report_sequence;
       unanswered_.pop_front()) {
    answered_ = unanswered_.front().second;
  }
  return true;
}

void ServerContact::NoteAttended(Turn& turn) {
  if (!unattended_.empty()) {
    turn.Say(Announce::Level::kInfo, "rendezvous_attended",
             absl::StrCat(turn.options.server, " serves this node again, after ",
                          Tenths(turn.now - last_heard_)));
    unattended_.clear();
  }
  was_accepted_ = true;
  last_heard_ = turn.now;
}

void ServerContact::NoteUnattended(const std::string& event, const std::string& why, Turn& turn) {
  const bool is_news = unattended_ != event;
  unattended_ = event;
  if (is_news) turn.Say(Announce::Level::kWarning, event, why);
}

uint64_t ServerContact::NumberReport(MonoTime now) {
  last_sent_ = now;
  unanswered_.emplace_back(++sequence_, now);
  if (unanswered_.size() > kMaxUnanswered) unanswered_.pop_front();
  return sequence_;
}

MonoTime ServerContact::NextReport(const LeaseSettings& lease) const {
  return is_up_ ? last_sent_ + LeaseByServer(lease).renew_interval : MonoTime::InfiniteFuture();
}

absl::Status ServerContact::MayPublish(const AgentCoreOptions& options, int num_nodes,
                                       MonoTime now) const {
  if (!is_up_) {
    return absl::UnavailableError(
        absl::StrCat("not possible now: no connection to ", options.server));
  }
  if (!unattended_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("not now: ", options.server, " does not serve this node"));
  }
  const LeaseSettings lease = LeaseOf(LeaseByServer(options.lease), num_nodes);
  if (now < answered_ + lease.duration - lease.margin) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("not now: ", options.server, " has not answered ",
                                             options.node.name, " for ", Tenths(now - answered_),
                                             ", and may have given its place to another"));
}

MonoTime ServerContact::Deadline(const AgentCoreOptions& options, bool awaits_outcome) const {
  if (options.hosts_server) return MonoTime::InfiniteFuture();
  if (!was_heard_) return last_heard_ + options.settings.join_timeout;
  if (awaits_outcome) return last_heard_ + options.read_timeout;
  return last_heard_ + options.settings.orphan_timeout;
}

bool ServerContact::IsStranger(const Refuse& refuse) const {
  return was_accepted_ && refuse.status.code() != absl::StatusCode::kFailedPrecondition;
}

std::string ServerContact::Silence(MonoTime now) const {
  return absl::StrCat("no answer for ",
                      absl::FormatDuration(absl::Trunc(now - last_heard_, absl::Seconds(1))), " (",
                      detail_, ")");
}

}  // namespace muster::agent

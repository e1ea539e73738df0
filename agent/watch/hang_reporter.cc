#include "agent/watch/hang_reporter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster::agent {

HangReporter::HangReporter(std::string run_id, std::string node,
                           const std::string& report_directory, OnWatchSaid on_said)
    : run_id_(std::move(run_id)),
      node_(std::move(node)),
      on_said_(std::move(on_said)),
      reports_(report_directory) {}

void HangReporter::StartRound(const WatchedRound& round) {
  round_ = round.round;
  restart_count_ = round.restart_count;
  network_faults_ = round.network_faults;
  standing_ = {};
}

void HangReporter::Write(log::Level level, absl::string_view event, const std::string& text) const {
  log::Write(level, event, text, {{"run", run_id_}, {"round", ToString(round_)}, {"node", node_}});
}

void HangReporter::Tell(WatchEvent event, const std::string& text) const {
  if (on_said_) on_said_(event, text);
}

void HangReporter::Stand(hangs::StandingKind kind, const std::string& text) {
  standing_ = {.kind = kind, .text = text};
  standing_since_ = MonoNow();
}

hangs::Standing HangReporter::standing() const {
  hangs::Standing standing = standing_;
  if (standing.kind != hangs::StandingKind::kNone) standing.age = MonoNow() - standing_since_;
  return standing;
}

void HangReporter::SayNotice(const std::string& text, hangs::Finding finding) {
  Stand(hangs::StandingKind::kNotice, text);
  const std::string network = network_faults_ ? NetworkInWords(network_faults_()) : std::string();
  log::Write(log::Level::kWarning, "waiting_ranks", absl::StrCat(network, text),
             {{"run", run_id_},
              {"round", ToString(round_)},
              {"node", node_},
              {"finding", hangs::ToString(finding)}});
  Tell(WatchEvent::kNotice, text);
}

void HangReporter::SayRecovery(const std::string& text) {
  if (standing_.kind == hangs::StandingKind::kNone) return;
  Stand(hangs::StandingKind::kNone, "");
  Write(log::Level::kInfo, "ranks_go_on", text);
  Tell(WatchEvent::kGoesOn, text);
}

void HangReporter::SaySlow(const hangs::SaySlow& order) {
  Write(order.is_over ? log::Level::kInfo : log::Level::kWarning, "slow_ranks", order.text);
  Tell(WatchEvent::kSlow, order.text);
}

void HangReporter::SayQuiet(bool is_over, const std::string& text) const {
  Write(is_over ? log::Level::kInfo : log::Level::kWarning, "quiet_ranks", text);
}

Incident HangReporter::MakeIncident(const hangs::SayVerdict& order) const {
  return {.run_id = run_id_,
          .node = node_,
          .round = round_,
          .restart_count = restart_count_,
          .decided_at = absl::Now() - order.since_decided,
          .diagnosis = order.diagnosis,
          .reason = order.reason,
          .action = order.action,
          .network_faults = network_faults_ ? network_faults_() : std::vector<std::string>(),
          .ranks = order.ranks,
          .timeline = {{std::string(kDetected), absl::ZeroDuration()},
                       {std::string(kDecided), order.since_detected - order.since_decided},
                       {std::string(kReported), order.since_detected}}};
}

std::string HangReporter::SayVerdict(const hangs::SayVerdict& order) {
  incident_ = MakeIncident(order);
  detected_at_ = MonoNow() - order.since_detected;
  report_path_ = reports_.NameNext("hang", restart_count_);
  Write(log::Level::kError, "hang",
        absl::StrCat(InWords(*incident_), "\n  all of it is in ", report_path_));
  Stand(hangs::StandingKind::kVerdict,
        absl::StrCat(order.diagnosis.Describe(), "; ", order.reason));
  Tell(WatchEvent::kVerdict, standing_.text);
  reports_.Write(report_path_, ToJson(*incident_));
  if (!order.replaces && order.to_end.empty()) incident_.reset();  // nothing follows from it
  return absl::StrCat("hang: ", standing_.text, "; see ", report_path_);
}

void HangReporter::SayAborts(const hangs::AbortReport& report) {
  const std::string text = hangs::InWords(report);
  const std::string path = reports_.NameNext("abort", restart_count_);
  Write(log::Level::kWarning, "abort", absl::StrCat(text, "\n  all of it is in ", path));
  const AbortIncident incident{.run_id = run_id_,
                               .node = node_,
                               .round = round_,
                               .restart_count = restart_count_,
                               .said_at = absl::Now(),
                               .report = report};
  reports_.Write(path, ToJson(incident));
  Tell(WatchEvent::kAbort, text);
}

// What comes a second time follows from something else: the attempt after the hang has ended too.
void HangReporter::AddMilestone(absl::string_view what) {
  if (incident_ && HasReached(*incident_, what)) incident_.reset();
  if (!incident_) return;
  incident_->timeline.push_back({std::string(what), MonoNow() - detected_at_});
  reports_.Write(report_path_, ToJson(*incident_));
}

void HangReporter::OnStep() {
  if (!incident_ || incident_->round == round_) return;
  AddMilestone(kFirstStep);
  if (!incident_) return;
  Write(log::Level::kInfo, "hang_timeline",
        absl::StrCat("the job makes progress again after the hang; ", TimelineInWords(*incident_)));
  incident_.reset();
}

}  // namespace muster::agent

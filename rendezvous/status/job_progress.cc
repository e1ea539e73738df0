#include "rendezvous/status/job_progress.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace muster::status {

void JobProgress::StartRound() {
  nodes_.clear();
  standing_ = {};
}

void JobProgress::OnSummary(Incarnation from, const hangs::NodeSummary& summary, MonoTime now) {
  NodeSaid said{.progress = summary.progress, .at = now};
  for (const hangs::SilentRanks& ranks : summary.silent) {
    if (said.silent_rank >= 0 && ranks.silent_for <= said.silent_for) continue;
    said.silent_rank = ranks.first_rank;
    said.silent_for = ranks.silent_for;
  }
  nodes_[from] = said;
  // The agent of a job on one node judges.
  const hangs::Standing& standing = summary.standing;
  if (!standing.is_told) return;
  if (standing.kind == hangs::StandingKind::kNone) {
    standing_ = {};
  } else if (standing_.kind != standing.kind || standing_.text != standing.text) {
    Say(standing.kind, standing.text, now - standing.age);
  }
}

void JobProgress::OnOrders(const hangs::JobWatch::Orders& orders, MonoTime now) {
  // All members are told the same.
  for (const auto& order : orders) {
    const auto* to = std::get_if<hangs::OrderTo>(&order);
    if (to == nullptr) continue;
    if (const auto* notice = std::get_if<hangs::SayNotice>(&to->order)) {
      return Say(hangs::StandingKind::kNotice, notice->text, now);
    }
    if (std::holds_alternative<hangs::SayRecovery>(to->order)) {
      standing_ = {};
      return;
    }
    if (const auto* verdict = std::get_if<hangs::SayVerdict>(&to->order)) {
      return Say(hangs::StandingKind::kVerdict,
                 absl::StrCat(verdict->diagnosis.Describe(), "; ", verdict->reason), now);
    }
  }
}

void JobProgress::Say(hangs::StandingKind kind, const std::string& text, MonoTime at) {
  standing_ = {kind, text, at};
  last_ = standing_;
}

}  // namespace muster::status

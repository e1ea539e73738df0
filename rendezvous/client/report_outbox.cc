#include "rendezvous/client/report_outbox.h"

#include <utility>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/renewal.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

// A report that comes this much before its time renews the lease too: the next one is an interval
// of the agent away.
constexpr absl::Duration kRenewEarly = absl::Seconds(1);

}  // namespace

void ReportOutbox::Put(const AgentReport& report) {
  newest_ = report;
  is_unsent_ = true;
}

void ReportOutbox::PutWord(const hangs::NodeWord& word, bool has_stream) {
  const auto* const summary = std::get_if<hangs::NodeSummary>(&word);
  if (summary != nullptr && std::exchange(summarized_, summary->round) == summary->round) {
    newest_summary_ = word;
  } else if (has_stream && urgent_words_.size() < kMaxUnsentWatchWords) {
    urgent_words_.push_back(word);
    is_unsent_ = newest_.has_value();
  }
}

void ReportOutbox::BeginStream() {
  is_unsent_ = newest_.has_value();
  sent_.reset();
  renew_interval_ = absl::ZeroDuration();
}

// An agent reports every two seconds; a large job's server wants to hear less.
bool ReportOutbox::Next(MonoTime now, Incarnation incarnation, ServerTerm term,
                        proto::FromAgent& out) {
  if (!std::exchange(is_unsent_, false)) return false;
  const bool is_renewal = sent_ && IsRenewalOf(*newest_, *sent_);
  const bool is_urgent = !urgent_words_.empty();
  if (is_renewal && !is_urgent && now + kRenewEarly < sent_at_ + renew_interval_) return false;
  if (is_renewal) {
    out.mutable_renewal()->set_sequence(newest_->sequence);
  } else {
    Encode(FencedReport{incarnation, term, *newest_}, out.mutable_report());
    sent_ = *newest_;
  }
  if (is_urgent) {
    Encode(urgent_words_.front(), out.mutable_watch());
    urgent_words_.pop_front();
    is_unsent_ = !urgent_words_.empty();
  } else if (newest_summary_) {
    Encode(*newest_summary_, out.mutable_watch());
    newest_summary_.reset();
  }
  sent_at_ = now;
  return true;
}

}  // namespace muster::rendezvous

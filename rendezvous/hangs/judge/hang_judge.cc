#include "rendezvous/hangs/judge/hang_judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::hangs {
namespace {

constexpr int kConfirmations = 3;
// Another thread of one of the ranks may still open a circle.
constexpr absl::Duration kSilenceOfACircle = absl::Seconds(30);
// Somebody may have stopped it for a look, and let it go on.
constexpr absl::Duration kSilenceOfAStop = absl::Seconds(10);
// A silence in which no rank is seen to wait may be a long computation.
constexpr absl::Duration kSoftWhereNobodyWaits = absl::Minutes(2);
// Who is waited for computes, reads or writes: a checkpoint, a first step that compiles.
constexpr absl::Duration kSoftWhereTheyAreBusy = absl::Minutes(1);
// It computes without leaving one function, as an endless loop does.
constexpr absl::Duration kSoftWhereTheyLoop = absl::Seconds(30);

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(std::llround(absl::ToDoubleSeconds(duration)), " s");
}

std::vector<int> Everyone(const Diagnosis& diagnosis) {
  std::vector<int> all = diagnosis.culprits;
  all.insert(all.end(), diagnosis.waiting.begin(), diagnosis.waiting.end());
  return all;
}

bool IsGone(const Diagnosis& diagnosis) {
  return diagnosis.finding == Finding::kEnded || diagnosis.finding == Finding::kStopped;
}

std::string KeyOf(const Diagnosis& diagnosis) {
  return absl::StrCat(ToString(diagnosis.finding), " ", diagnosis.group, " ",
                      diagnosis.operation ? diagnosis.operation->sequence : -1, " ",
                      absl::StrJoin(diagnosis.culprits, ","));
}

}  // namespace

void HangJudge::StartRound() {
  ranks_.clear();
  incident_.reset();
}

bool HangJudge::Hear(const std::vector<RankSilence>& silences) {
  ranks_.clear();
  bool is_silent = false;
  for (const RankSilence& each : silences) {
    ranks_[each.rank] = each;
    is_silent = is_silent || each.silent_for >= kSuspiciousSilence;
  }
  return is_silent || incident_.has_value();
}

absl::Duration HangJudge::SilenceOf(int rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? absl::ZeroDuration() : found->second.silent_for;
}

absl::Duration HangJudge::LeastSilence(const std::vector<int>& ranks) const {
  absl::Duration least = absl::InfiniteDuration();
  for (const int rank : ranks) least = std::min(least, SilenceOf(rank));
  return ranks.empty() ? absl::ZeroDuration() : least;
}

absl::Duration HangJudge::Longest(absl::Duration (HangLimits::*limit)(WatchPhase) const,
                                  const std::vector<int>& ranks, absl::Duration least) const {
  for (const int rank : ranks) {
    const auto found = ranks_.find(rank);
    if (found != ranks_.end()) least = std::max(least, (limits_.*limit)(found->second.phase));
  }
  return least;
}

// Nothing while a rank that is concerned still does something.
std::optional<std::string> HangJudge::ReasonForVerdict(const Diagnosis& diagnosis) const {
  if (diagnosis.finding == Finding::kOutOfSight || diagnosis.is_inferred) return std::nullopt;
  if (!diagnosis.can_heal && diagnosis.confidence >= kConfidenceToAct) {
    const absl::Duration silence =
        LeastSilence(IsGone(diagnosis) ? diagnosis.waiting : Everyone(diagnosis));
    absl::Duration least = kSuspiciousSilence;
    if (diagnosis.finding == Finding::kStopped) least = kSilenceOfAStop;
    if (diagnosis.finding == Finding::kCircle) least = kSilenceOfACircle;
    if (silence < least || incident_->confirmations < kConfirmations) return std::nullopt;
    return "waiting cannot heal it";
  }
  // Who is gone, at the start or before a barrier, is silent for good.
  const std::vector<int> everyone = IsGone(diagnosis) ? diagnosis.waiting : Everyone(diagnosis);
  const absl::Duration hard = Longest(&HangLimits::Hard, everyone, limits_.Hard(WatchPhase::kStep));
  if (LeastSilence(everyone) < hard || incident_->confirmations < kConfirmations) {
    return std::nullopt;
  }
  return absl::StrCat("nothing has moved for ", Seconds(hard), " (--hang_timeout)");
}

// `goes_on`: the ranks move again, and not only what is found about them has changed.
void HangJudge::Close(bool goes_on, std::vector<WatchEffect>& out) {
  if (goes_on && incident_ && !incident_->subject.empty()) {
    out.push_back(Recovery{absl::StrCat("it goes on: ", incident_->subject)});
  }
  incident_.reset();
}

std::vector<WatchEffect> HangJudge::Judge(const Diagnosis& diagnosis) {
  std::vector<WatchEffect> out;
  const bool all_count = diagnosis.waiting.empty() || diagnosis.finding == Finding::kSilent;
  if (diagnosis.finding == Finding::kNobodyWaits ||
      LeastSilence(all_count ? Everyone(diagnosis) : diagnosis.waiting) < kSuspiciousSilence) {
    Close(/*goes_on=*/true, out);
    return out;
  }
  const std::string key = KeyOf(diagnosis);
  if (!incident_ || incident_->key != key) {
    const bool goes_on = incident_ && LeastSilence(incident_->ranks) < kSuspiciousSilence;
    // What was said of this silence is owed its end, also where more is known of it later. One
    // notice of one silence, but for one after a verdict.
    Incident next{.key = key, .ranks = Everyone(diagnosis)};
    if (incident_ && !goes_on) {
      next.is_noticed = incident_->is_noticed && !incident_->is_judged;
      next.subject = incident_->subject;
    }
    Close(goes_on, out);
    incident_ = std::move(next);
  }
  ++incident_->confirmations;
  if (incident_->is_judged) return out;
  if (const std::optional<std::string> reason = ReasonForVerdict(diagnosis)) {
    incident_->is_judged = true;
    incident_->subject = diagnosis.Describe();
    absl::Duration silence = kSuspiciousSilence;
    for (const int rank : Everyone(diagnosis)) silence = std::max(silence, SilenceOf(rank));
    out.push_back(Verdict{
        .diagnosis = diagnosis, .reason = *reason, .since_detected = silence - kSuspiciousSilence});
    return out;
  }
  // One that is stopped may never have written anything: those who wait count.
  const std::vector<int>& awaited =
      diagnosis.culprits.empty() || IsGone(diagnosis) ? diagnosis.waiting : diagnosis.culprits;
  absl::Duration soft = Longest(&HangLimits::Soft, Everyone(diagnosis), HangLimits::kSoftMin);
  if (diagnosis.finding == Finding::kSilent) soft = std::max(soft, kSoftWhereNobodyWaits);
  if (diagnosis.is_busy) {
    soft = std::max(soft, diagnosis.loop ? kSoftWhereTheyLoop : kSoftWhereTheyAreBusy);
  }
  if (!incident_->is_noticed && LeastSilence(awaited) >= soft) {
    incident_->is_noticed = true;
    incident_->subject = diagnosis.Describe();
    out.push_back(Notice{diagnosis});
  }
  return out;
}

}  // namespace muster::hangs

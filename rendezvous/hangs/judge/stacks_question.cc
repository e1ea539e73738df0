#include "rendezvous/hangs/judge/stacks_question.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/evidence/cause.h"

namespace muster::hangs {

void StacksQuestion::Begin(uint64_t question, Round round, Verdict verdict,
                           std::vector<RankReport> reports, MonoTime now) {
  question_ = question;
  round_ = round;
  verdict_ = std::move(verdict);
  decided_at_ = now;
  has_moved_ = false;
  reports_ = std::move(reports);
  shown_.clear();
}

void StacksQuestion::Take(const WatchedNode& node, NodeStacks stacks) {
  has_moved_ = has_moved_ || stacks.has_moved || stacks.round != round_;
  shown_.insert(node.agent);
  for (RankReport& report : stacks.ranks) {
    if (!Holds(node, report.rank)) continue;
    report.node = node.name;
    const auto same = std::find_if(reports_.begin(), reports_.end(), [&](const RankReport& other) {
      return other.rank == report.rank;
    });
    if (same != reports_.end()) {
      *same = std::move(report);
    } else {
      reports_.push_back(std::move(report));
    }
  }
}

SayVerdict StacksQuestion::MakeVerdict(const std::vector<Gathering>& gatherings,
                                       const std::string& unseen, MonoTime now) const {
  const Diagnosis& diagnosis = verdict_.diagnosis;
  SayVerdict say{.question = question_,
                 .round = round_,
                 .diagnosis = diagnosis,
                 .reason = absl::StrCat(verdict_.reason, unseen),
                 .since_detected = verdict_.since_detected + (now - decided_at_),
                 .since_decided = now - decided_at_,
                 .ranks = reports_};
  MarkToldByStore(gatherings, say.ranks);
  const auto is_culprit = [&](int rank) {
    return std::binary_search(diagnosis.culprits.begin(), diagnosis.culprits.end(), rank);
  };
  std::stable_partition(say.ranks.begin(), say.ranks.end(),
                        [&](const RankReport& rank) { return is_culprit(rank.rank); });
  say.diagnosis.cause = RefineCause(diagnosis, say.ranks);
  // Those at fault; where nobody is who lives, one of those who wait, since the attempt has to end.
  for (const RankReport& rank : say.ranks) {
    if (is_culprit(rank.rank) && rank.pid != 0) say.to_end.push_back(rank.rank);
  }
  if (say.to_end.empty() && !diagnosis.waiting.empty()) {
    say.to_end.push_back(diagnosis.waiting.front());
  }
  return say;
}

}  // namespace muster::hangs

#include "rendezvous/hangs/judge/stacks_question.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/evidence/cause.h"

namespace muster::hangs {
namespace {

// They may take an agent eight seconds.
constexpr absl::Duration kTimeForStacks = absl::Seconds(12);

}  // namespace

std::vector<OrderTo> StacksQuestion::Ask(AskStacks ask, absl::btree_set<Incarnation> nodes,
                                         Verdict verdict, MonoTime now) {
  *this = StacksQuestion();
  ask_ = std::move(ask);
  verdict_ = std::move(verdict);
  decided_at_ = now;
  poll_.Ask(ask_.question, std::move(nodes), now + kTimeForStacks);
  return poll_.Tell(ask_);
}

void StacksQuestion::Take(const WatchedNode& node, NodeStacks stacks) {
  if (!poll_.Take(node.agent, stacks.question)) return;
  has_moved_ = has_moved_ || stacks.has_moved || stacks.round != ask_.round;
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
  SayVerdict say{.question = ask_.question,
                 .round = ask_.round,
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

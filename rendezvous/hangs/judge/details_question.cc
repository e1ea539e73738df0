#include "rendezvous/hangs/judge/details_question.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::hangs {
namespace {

constexpr absl::Duration kTimeForDetails = absl::Seconds(3);

}  // namespace

std::vector<OrderTo> DetailsQuestion::Ask(uint64_t question, const NodeTable& nodes, MonoTime now) {
  *this = DetailsQuestion();
  evidence_ = EvidenceMerger(nodes.round());
  poll_.Ask(question, nodes.TakingPart(), now + kTimeForDetails);
  return poll_.Tell(AskDetails{question, nodes.round()});
}

void DetailsQuestion::Take(const WatchedNode& node, NodeDetails details) {
  if (!poll_.Take(node.agent, details.question)) return;
  Evidence& evidence = details.evidence;
  absl::btree_set<int> seen;
  std::vector<RankEvidence> own;
  for (RankEvidence& rank : evidence.ranks) {
    if (!Holds(node, rank.rank) || !seen.insert(rank.rank).second) continue;
    rank.node = node.name;
    own.push_back(std::move(rank));
  }
  evidence.ranks = std::move(own);
  is_held_ = is_held_ || details.is_held;
  if (node.first_rank == 0) gatherings_ = std::move(details.gatherings);
  evidence_.Add(std::move(evidence));
}

std::vector<RankSilence> DetailsQuestion::Silences(const NodeTable& nodes) const {
  std::vector<RankSilence> out;
  for (const auto& [agent, node] : nodes) {
    if (!poll_.HasAnswered(agent)) continue;
    for (const SilentRanks& ranks : node.summary->silent) {
      for (int rank = ranks.first_rank; rank < ranks.first_rank + ranks.num_ranks; ++rank) {
        if (Holds(node.about, rank)) out.push_back({rank, ranks.phase, ranks.silent_for});
      }
    }
  }
  absl::btree_map<int, absl::Duration> mute;
  for (const RankEvidence& rank : evidence().ranks) {
    if (rank.is_mute) mute[rank.rank] = rank.silent_for;
  }
  const std::vector<RankSilence> of_mute = SilencesOf(gatherings_, mute);
  out.insert(out.end(), of_mute.begin(), of_mute.end());
  return out;
}

void DetailsQuestion::Finish(const NodeTable& nodes) {
  Evidence unseen{.round = nodes.round()};
  for (const auto& [agent, node] : nodes) {
    if (poll_.HasAnswered(agent)) continue;
    for (int i = 0; i < node.about.num_ranks; ++i) {
      unseen.ranks.push_back({.rank = node.about.first_rank + i,
                              .round = nodes.round(),
                              .node = node.about.name,
                              .life = Life::kUnreachable});
    }
  }
  evidence_.Add(std::move(unseen));
  evidence_.Add(gatherings_);
}

void DetailsQuestion::Select(const NodeTable& nodes, const std::vector<int>& ranks, size_t max,
                             absl::btree_set<Incarnation>& out) const {
  constexpr size_t kRanksLookedAt = 256;
  for (size_t i = 0; i < std::min(ranks.size(), kRanksLookedAt) && out.size() < max; ++i) {
    const NodeTable::Node* node = nodes.OfRank(ranks[i]);
    if (node != nullptr && poll_.HasAnswered(node->about.agent)) out.insert(node->about.agent);
  }
}

RankReport ReportOf(const RankEvidence& rank) {
  // Nothing need be said of programs that mark nothing.
  const bool is_marked = rank.phase != Phase::kStarting || rank.step.has_value();
  return {.rank = rank.rank,
          .node = rank.node,
          .pid = rank.pid,
          .phase = is_marked ? PhaseInWords(rank.phase, rank.step) : "",
          .step = rank.step,
          .silent_for = rank.silent_for,
          .doing = rank.doing,
          .no_frames = "its node did not answer in time"};
}

std::vector<RankReport> DetailsQuestion::ReportsOfNamed(const Diagnosis& diagnosis) const {
  const std::vector<int>& named =
      diagnosis.culprits.empty() ? diagnosis.waiting : diagnosis.culprits;
  std::vector<RankReport> reports;
  for (const RankEvidence& rank : evidence().ranks) {
    const bool is_named = std::binary_search(named.begin(), named.end(), rank.rank);
    if (reports.size() == kRanksNamedMax) break;
    if (is_named && rank.life != Life::kUnreachable) reports.push_back(ReportOf(rank));
  }
  return reports;
}

std::string DetailsQuestion::DescribeUnseen(const NodeTable& nodes) const {
  constexpr size_t kNamedMax = 4;
  std::string text;
  size_t num_named = 0;
  for (const auto& [agent, node] : nodes) {
    if (poll_.HasAnswered(agent) || ++num_named > kNamedMax) continue;
    std::vector<int> ranks;
    for (int i = 0; i < node.about.num_ranks; ++i) ranks.push_back(node.about.first_rank + i);
    absl::StrAppend(&text, text.empty() ? "; nothing is known of " : ", ", RanksInWords(ranks),
                    " on ", node.about.name,
                    node.summary ? " (its agent does not answer)"
                                 : " (its agent takes no part in the watch: --watch=off, or an "
                                   "older muster)");
  }
  if (num_named > kNamedMax) {
    absl::StrAppend(&text, " and of those on ", num_named - kNamedMax, " more nodes");
  }
  return text;
}

}  // namespace muster::hangs

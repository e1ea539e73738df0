#include "rendezvous/verdict/job_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/verdict/cause.h"

namespace muster::verdict {
namespace {

// How long nodes have for their answers. Stacks may take an agent eight seconds.
constexpr absl::Duration kTimeForDetails = absl::Seconds(3);
constexpr absl::Duration kTimeForStacks = absl::Seconds(12);
// Between two questions; more in large jobs, so that questions cost them no more than renewals do.
constexpr absl::Duration kBetweenQuestions = absl::Seconds(1);
constexpr size_t kNodesPerSecond = 256;
constexpr absl::Duration kBetweenQuestionsMax = absl::Seconds(10);
// A verdict that was lost on its way is said again.
constexpr absl::Duration kSayAgain = absl::Seconds(15);
// Nodes that are asked for stacks.
constexpr size_t kNodesAtFaultAsked = 16;
constexpr size_t kNodesWaitingAsked = 8;
constexpr size_t kNamedMax = 4;

}  // namespace

void JobWatch::StartRound(Round round, std::vector<WatchedNode> nodes, MonoTime now) {
  StopRound();
  round_ = round;
  // Also after a restart of the server an answer is told from one to an older question.
  question_ =
      std::max(question_, static_cast<uint64_t>(absl::ToInt64Microseconds(now.since_zero())));
  next_question_ = now;
  core_.StartRound();
  slow_.by_marks.StartRound();
  slow_.by_calls.StartRound(round);
  aborts_.StartRound(round, nodes);
  for (WatchedNode& node : nodes) {
    const Incarnation agent = node.agent;
    agent_of_first_rank_[node.first_rank] = agent;
    nodes_[agent] = {.about = std::move(node)};
  }
  absl::erase_if(learned_from_, [&](const auto& entry) { return !nodes_.contains(entry.first); });
}

void JobWatch::StopRound() {
  nodes_.clear();
  agent_of_first_rank_.clear();
  hang_timeout_ = absl::ZeroDuration();
  judged_ = Judged::kNo;
  awaited_.clear();
  num_suspicious_ = 0;
  is_start_suspicious_ = false;
  num_measuring_ = 0;
  num_new_paces_ = 0;
  stage_ = Stage::kListening;
  verdict_.reset();
  said_.reset();
  reports_.clear();
  evidence_ = EvidenceMerger(kNoRound);
  gatherings_.clear();
}

JobWatch::Orders JobWatch::OnWord(Incarnation from, NodeWord word, MonoTime now) {
  Orders out;
  if (auto* aborted = std::get_if<RankAborted>(&word)) {
    for (OrderTo& order : aborts_.OnWord(from, *aborted, now)) out.push_back(std::move(order));
    return out;
  }
  if (auto* calls = std::get_if<NodeLastCalls>(&word)) {
    for (OrderTo& order : aborts_.OnWord(from, std::move(*calls))) out.push_back(std::move(order));
    return out;
  }
  const auto node = nodes_.find(from);
  if (node == nodes_.end()) return out;
  if (auto* arrivals = std::get_if<NodeArrivals>(&word)) {
    SayLate(slow_.by_calls.OnWord(from, std::move(*arrivals), now), out);
    return out;
  }
  if (auto* summary = std::get_if<NodeSummary>(&word)) {
    if (summary->round == round_) {
      for (OrderTo& order : slow_.by_calls.OnSummary(from, summary->arrival_window, now)) {
        out.push_back(std::move(order));
      }
    }
    On(node->second, std::move(*summary), now);
  }
  if (auto* details = std::get_if<NodeDetails>(&word)) On(node->second, std::move(*details), now);
  if (auto* stacks = std::get_if<NodeStacks>(&word)) On(node->second, std::move(*stacks), now);
  ComparePaces(out);
  Advance(now, out);
  return out;
}

JobWatch::Orders JobWatch::Tick(MonoTime now) {
  Orders out;
  for (OrderTo& order : aborts_.Tick(now)) out.push_back(std::move(order));
  if (!IsWatching()) return out;
  SayLate(slow_.by_calls.Tick(now), out);
  Advance(now, out);
  return out;
}

MonoTime JobWatch::NextDeadline() const {
  MonoTime next = aborts_.NextDeadline();
  if (!IsWatching()) return next;
  next = Min(next, slow_.by_calls.NextDeadline());
  if (stage_ != Stage::kListening) return Min(next, deadline_);
  if (WantsDetails()) next = Min(next, next_question_);
  return said_ ? Min(next, say_again_) : next;
}

// --- What the nodes say

void JobWatch::On(Node& node, NodeSummary&& summary, MonoTime) {
  Absorb(node.about.agent, summary);
  if (summary.round == round_) TakeSummary(node, std::move(summary));
}

void JobWatch::On(Node& node, NodeDetails&& details, MonoTime now) {
  On(node, std::move(details.summary), now);
  if (stage_ != Stage::kAsking || details.question != question_ ||
      details.evidence.round != round_ || awaited_.erase(node.about.agent) == 0) {
    return;
  }
  // Only the node's own ranks count, each once.
  Evidence& evidence = details.evidence;
  absl::btree_set<int> seen;
  std::vector<RankEvidence> own;
  for (RankEvidence& rank : evidence.ranks) {
    const int index = rank.rank - node.about.first_rank;
    if (index < 0 || index >= node.about.num_ranks || !seen.insert(rank.rank).second) continue;
    rank.node = node.about.name;
    own.push_back(std::move(rank));
  }
  evidence.ranks = std::move(own);
  node.has_answered = true;
  is_held_ = is_held_ || details.is_held;
  if (node.about.first_rank == 0) gatherings_ = std::move(details.gatherings);
  evidence_.Add(std::move(evidence));
}

void JobWatch::On(Node& node, NodeStacks&& stacks, MonoTime) {
  if (stage_ != Stage::kGathering || stacks.question != question_ ||
      awaited_.erase(node.about.agent) == 0) {
    return;
  }
  has_moved_ = has_moved_ || stacks.has_moved || stacks.round != round_;
  shown_.insert(node.about.agent);
  for (RankReport& report : stacks.ranks) {
    const int index = report.rank - node.about.first_rank;
    if (index < 0 || index >= node.about.num_ranks) continue;
    report.node = node.about.name;
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

void JobWatch::Absorb(Incarnation from, const NodeSummary& summary) {
  LearnedSilences& before = learned_from_[from];
  if (before == summary.learned) return;
  core_.limits().Add(summary.learned, before);
  before = summary.learned;
}

void JobWatch::TakeSummary(Node& node, NodeSummary summary) {
  const bool was_suspicious = std::exchange(
      node.is_suspicious,
      std::any_of(summary.silent.begin(), summary.silent.end(),
                  [](const SilentRanks& ranks) { return ranks.silent_for >= kSuspiciousSilence; }));
  num_suspicious_ += static_cast<int>(node.is_suspicious) - static_cast<int>(was_suspicious);
  if (node.about.first_rank == 0) {
    is_start_suspicious_ = summary.silence_at_start >= kSuspiciousSilence;
  }
  TakePaces(node, summary.paces);
  aborts_.OnSummary(node.about.agent);
  node.summary = std::move(summary);
  // Where nodes differ, the most patient counts.
  hang_timeout_ = std::max(hang_timeout_, node.summary->hang_timeout);
  core_.limits().SetTimeout(hang_timeout_);
}

// Those who wait for the start may tell nothing themselves, and the node of rank 0 have none of
// them.
bool JobWatch::WantsDetails() const {
  return num_suspicious_ > 0 || core_.HasIncident() || is_start_suspicious_;
}

// --- Who is slow

// Once all that measure have a new window: windows of one time are compared.
void JobWatch::ComparePaces(Orders& out) {
  if (num_measuring_ == 0 || num_new_paces_ < num_measuring_) return;
  num_new_paces_ = 0;
  std::vector<RankPace> paces;
  for (const auto& [first_rank, agent] : agent_of_first_rank_) {
    Node& node = nodes_.at(agent);
    node.has_new_paces = false;
    if (!node.summary) continue;
    const std::vector<absl::Duration>& own = node.summary->paces.own;
    for (int i = 0; i < std::min(node.about.num_ranks, static_cast<int>(own.size())); ++i) {
      if (own[i] > absl::ZeroDuration()) paces.push_back({first_rank + i, own[i]});
    }
  }
  if (const auto change = slow_.by_marks.OnWindow(paces)) {
    TellAll(SaySlow{round_, change->slow.empty(), change->text}, out);
  }
}

void JobWatch::SayLate(const std::optional<std::string>& words, Orders& out) const {
  if (words) TellAll(SaySlow{round_, /*is_over=*/false, *words}, out);
}

// Nodes measure from their first window on.
void JobWatch::TakePaces(Node& node, const NodePaces& paces) {
  const int64_t before = node.summary ? node.summary->paces.window : 0;
  if (paces.window == before) return;
  num_measuring_ += static_cast<int>(before == 0);
  num_measuring_ -= static_cast<int>(paces.window == 0);
  num_new_paces_ += static_cast<int>(paces.window != 0) - static_cast<int>(node.has_new_paces);
  node.has_new_paces = paces.window != 0;
}

// --- What follows

void JobWatch::Advance(MonoTime now, Orders& out) {
  const bool is_over = awaited_.empty() || now >= deadline_;
  if (stage_ == Stage::kAsking && is_over) {
    Decide(now, out);
  } else if (stage_ == Stage::kGathering && is_over) {
    Conclude(now, out);
  }
  if (stage_ != Stage::kListening) return;
  if (said_ && now >= say_again_) {
    const absl::Duration since_last = now - (say_again_ - kSayAgain);
    said_->since_detected += since_last;
    said_->since_decided += since_last;
    say_again_ = now + kSayAgain;
    for (const Incarnation holder : NodesOf(said_->to_end)) out.push_back(OrderTo{holder, *said_});
  }
  if (WantsDetails() && now >= next_question_) Ask(now, out);
}

void JobWatch::Ask(MonoTime now, Orders& out) {
  stage_ = Stage::kAsking;
  ++question_;
  deadline_ = now + kTimeForDetails;
  is_held_ = false;
  evidence_ = EvidenceMerger(round_);
  gatherings_.clear();
  awaited_.clear();
  for (auto& [agent, node] : nodes_) {
    node.has_answered = false;
    if (!node.summary) continue;
    awaited_.insert(agent);
    out.push_back(OrderTo{agent, AskDetails{question_, round_}});
  }
  const absl::Duration spread =
      kBetweenQuestions * static_cast<double>(nodes_.size()) / static_cast<double>(kNodesPerSecond);
  // What has been judged is only looked at to see whether it goes on.
  next_question_ =
      now + (judged_ != Judged::kNo ? kBetweenQuestionsMax
                                    : std::clamp(spread, kBetweenQuestions, kBetweenQuestionsMax));
}

std::vector<RankSilence> JobWatch::AllSilences() const {
  std::vector<RankSilence> out;
  for (const auto& [agent, node] : nodes_) {
    if (!node.has_answered) continue;
    for (const SilentRanks& ranks : node.summary->silent) {
      for (int i = 0; i < ranks.num_ranks; ++i) {
        const int index = ranks.first_rank + i - node.about.first_rank;
        if (index < 0 || index >= node.about.num_ranks) continue;
        out.push_back({ranks.first_rank + i, ranks.phase, ranks.silent_for});
      }
    }
  }
  absl::btree_map<int, absl::Duration> mute;
  for (const RankEvidence& rank : evidence_.merged().ranks) {
    if (rank.is_mute) mute[rank.rank] = rank.silent_for;
  }
  const std::vector<RankSilence> of_mute = SilencesOf(gatherings_, mute);
  out.insert(out.end(), of_mute.begin(), of_mute.end());
  return out;
}

void JobWatch::AddUnseenRanks() {
  Evidence unseen{.round = round_};
  for (const auto& [agent, node] : nodes_) {
    if (node.has_answered) continue;
    for (int i = 0; i < node.about.num_ranks; ++i) {
      unseen.ranks.push_back({.rank = node.about.first_rank + i,
                              .round = round_,
                              .node = node.about.name,
                              .life = Life::kUnreachable});
    }
  }
  evidence_.Add(std::move(unseen));
}

void JobWatch::Decide(MonoTime now, Orders& out) {
  stage_ = Stage::kListening;
  awaited_.clear();
  if (is_held_) return;
  const bool is_silent = core_.Hear(AllSilences());
  if (!core_.HasIncident()) {  // what it was about goes on
    said_.reset();
    judged_ = Judged::kNo;
  }
  if (!is_silent) {
    // Each rank that has not come does something: the store goes on telling that each second.
    if (num_suspicious_ == 0) next_question_ = now + kBetweenQuestionsMax;
    return;
  }
  AddUnseenRanks();
  evidence_.Add(gatherings_);
  const Diagnosis diagnosis = Diagnose(evidence_.merged());
  for (const WatchEffect& effect : core_.Judge(diagnosis)) {
    if (const auto* notice = std::get_if<Notice>(&effect)) {
      TellAll(
          SayNotice{round_, notice->diagnosis.finding,
                    absl::StrCat(notice->text, DescribeUnseen(), DescribeRanks(notice->diagnosis))},
          out);
    } else if (const auto* recovery = std::get_if<Recovery>(&effect)) {
      if (judged_ == Judged::kActsOnIt) continue;  // they move because they are ended
      TellAll(SayRecovery{round_, recovery->text}, out);
    } else {
      Gather(std::get<Verdict>(effect), now, out);
    }
  }
}

void JobWatch::Gather(const Verdict& verdict, MonoTime now, Orders& out) {
  stage_ = Stage::kGathering;
  verdict_ = verdict;
  decided_at_ = now;
  ++question_;
  deadline_ = now + kTimeForStacks;
  has_moved_ = false;
  reports_.clear();
  shown_.clear();
  SelectNodes(verdict.diagnosis.culprits, kNodesAtFaultAsked, awaited_);
  SelectNodes(verdict.diagnosis.waiting, awaited_.size() + kNodesWaitingAsked, awaited_);
  // Who has come meanwhile, the store knows.
  if (!gatherings_.empty()) SelectNodes({0}, awaited_.size() + 1, awaited_);
  for (const Incarnation agent : awaited_) {
    out.push_back(OrderTo{agent, AskStacks{question_, round_}});
  }
  // For those whose stacks do not come.
  for (const RankEvidence& rank : evidence_.merged().ranks) {
    const Node* node = NodeOfRank(rank.rank);
    if (node != nullptr && awaited_.contains(node->about.agent)) reports_.push_back(ReportOf(rank));
  }
  if (awaited_.empty()) Conclude(now, out);
}

void JobWatch::Conclude(MonoTime now, Orders& out) {
  stage_ = Stage::kListening;
  next_question_ = std::max(next_question_, now + kBetweenQuestions);
  const Verdict verdict = *std::exchange(verdict_, std::nullopt);
  if (has_moved_) {
    TellAll(SayRecovery{round_, absl::StrCat("it goes on: ", verdict.diagnosis.Describe())}, out);
    return;
  }
  SayVerdict say = MakeVerdict(verdict, now);
  judged_ = Judged::kActsOnIt;
  std::string why_not_replaced;
  if (Replace(say, why_not_replaced, out)) return;
  const bool ends = std::any_of(say.to_end.begin(), say.to_end.end(), [&](int rank) {
    const Node* node = NodeOfRank(rank);
    return node != nullptr && node->summary && node->summary->ends_workers;
  });
  if (!ends) say.to_end.clear();
  say.action = ActionInWords(ends, why_not_replaced);
  TellAll(say, out);
  if (!ends) {
    judged_ = Judged::kOnlySaid;
    return;
  }
  said_ = std::move(say);
  say_again_ = now + kSayAgain;
}

SayVerdict JobWatch::MakeVerdict(const Verdict& verdict, MonoTime now) {
  const Diagnosis& diagnosis = verdict.diagnosis;
  SayVerdict say{.question = question_,
                 .round = round_,
                 .diagnosis = diagnosis,
                 .reason = absl::StrCat(verdict.reason, DescribeUnseen()),
                 .since_detected = verdict.since_detected + (now - decided_at_),
                 .since_decided = now - decided_at_,
                 .ranks = std::move(reports_)};
  reports_.clear();
  MarkToldByStore(gatherings_, say.ranks);
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

bool JobWatch::Replace(SayVerdict& say, std::string& why_not, Orders& out) {
  const absl::btree_set<Incarnation> acting = NodesOf(say.to_end);
  const bool is_wanted = !acting.empty() && std::all_of(acting.begin(), acting.end(), [&](auto id) {
    return nodes_.at(id).summary && nodes_.at(id).summary->may_replace;
  });
  if (!is_wanted) return false;
  const absl::btree_set<Incarnation> at_fault = NodesOf(say.diagnosis.culprits);
  why_not = WhyNotReplaced(say.diagnosis, at_fault);
  if (!why_not.empty()) return false;
  std::vector<std::string> names;
  for (const Incarnation node : at_fault) names.push_back(nodes_.at(node).about.name);
  say.to_end.clear();
  say.replaces = true;
  say.action = ReplacementInWords(names);
  TellAll(say, out);
  out.push_back(ReplaceNodes{{at_fault.begin(), at_fault.end()},
                             absl::StrCat("hang: ", say.diagnosis.Describe(), "; ", say.reason)});
  return true;
}

std::string JobWatch::WhyNotReplaced(const Diagnosis& diagnosis,
                                     const absl::btree_set<Incarnation>& at_fault) const {
  if (IsOfTheProgram(diagnosis.finding)) return "the program is at fault, not the node";
  if (diagnosis.confidence < kConfidenceToAct) return "which node is at fault is uncertain";
  if (static_cast<int>(at_fault.size()) > spares_.num_nodes) {
    return "the job has no node to spare";
  }
  for (const Incarnation node : at_fault) {
    const std::string& name = nodes_.at(node).about.name;
    if (node == spares_.host) return absl::StrCat(name, " hosts the rendezvous");
    if (!shown_.contains(node)) return absl::StrCat(name, " has not shown what its ranks do");
    if (!nodes_.at(node).summary->may_replace) return absl::StrCat(name, " has another --watch");
  }
  return "";
}

// --- Words

void JobWatch::TellAll(const WatchOrder& order, Orders& out) const {
  for (const auto& [agent, node] : nodes_) {
    if (node.summary) out.push_back(OrderTo{agent, order});
  }
}

const JobWatch::Node* JobWatch::NodeOfRank(int rank) const {
  auto after = agent_of_first_rank_.upper_bound(rank);
  if (after == agent_of_first_rank_.begin()) return nullptr;
  const Node& node = nodes_.at(std::prev(after)->second);
  return rank < node.about.first_rank + node.about.num_ranks ? &node : nullptr;
}

absl::btree_set<Incarnation> JobWatch::NodesOf(const std::vector<int>& ranks) const {
  absl::btree_set<Incarnation> nodes;
  for (const int rank : ranks) {
    if (const Node* node = NodeOfRank(rank)) nodes.insert(node->about.agent);
  }
  return nodes;
}

void JobWatch::SelectNodes(const std::vector<int>& ranks, size_t max,
                           absl::btree_set<Incarnation>& out) const {
  constexpr size_t kRanksLookedAt = 256;
  for (size_t i = 0; i < std::min(ranks.size(), kRanksLookedAt) && out.size() < max; ++i) {
    const Node* node = NodeOfRank(ranks[i]);
    if (node != nullptr && node->has_answered) out.insert(node->about.agent);
  }
}

RankReport JobWatch::ReportOf(const RankEvidence& rank) const {
  return {.rank = rank.rank,
          .node = rank.node,
          .pid = rank.pid,
          .phase = PhaseInWords(rank.phase, rank.step),
          .step = rank.step,
          .silent_for = rank.silent_for,
          .doing = rank.doing,
          .no_frames = "its node did not answer in time"};
}

std::string JobWatch::DescribeRanks(const Diagnosis& diagnosis) const {
  const std::vector<int>& named =
      diagnosis.culprits.empty() ? diagnosis.waiting : diagnosis.culprits;
  std::string text;
  size_t num_named = 0;
  for (const RankEvidence& rank : evidence_.merged().ranks) {
    const bool is_named = std::binary_search(named.begin(), named.end(), rank.rank);
    if (!is_named || rank.life == Life::kUnreachable || num_named++ >= kNamedMax) continue;
    absl::StrAppend(&text, "; ", verdict::InWords(ReportOf(rank)));
  }
  return text;
}

std::string JobWatch::DescribeUnseen() const {
  std::string text;
  size_t num_named = 0;
  for (const auto& [agent, node] : nodes_) {
    if (node.has_answered) continue;
    if (++num_named > kNamedMax) continue;
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

}  // namespace muster::verdict

#include "rendezvous/hangs/judge/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::hangs {
namespace {

// How long nodes have for their answers. Stacks may take an agent eight seconds.
constexpr absl::Duration kTimeForDetails = absl::Seconds(3);
constexpr absl::Duration kTimeForStacks = absl::Seconds(12);
// The time between two questions; it is longer in large jobs, so that questions cost them no more
// than renewals do.
constexpr absl::Duration kBetweenQuestions = absl::Seconds(1);
constexpr size_t kNodesPerSecond = 256;
constexpr absl::Duration kBetweenQuestionsMax = absl::Seconds(10);
// Nodes that are asked for stacks.
constexpr size_t kNodesAtFaultAsked = 16;
constexpr size_t kNodesWaitingAsked = 8;

void Append(std::vector<OrderTo> orders, JobWatch::Orders& out) {
  for (OrderTo& order : orders) out.push_back(std::move(order));
}

}  // namespace

void JobWatch::StartRound(Round round, std::vector<WatchedNode> nodes, MonoTime now) {
  StopRound();
  // The clock keeps an answer to an older question apart even after the server restarts.
  question_ =
      std::max(question_, static_cast<uint64_t>(absl::ToInt64Microseconds(now.since_zero())));
  next_question_ = now;
  judge_.StartRound();
  paces_.StartRound(nodes);
  late_.StartRound(round);
  aborts_.StartRound(round, nodes);
  nodes_.StartRound(round, std::move(nodes));
  ends_.StartRound(nodes_.num_ranks());
}

void JobWatch::StopRound() {
  nodes_.StopRound();
  stage_ = Stage::kListening;
  awaited_.clear();
  details_.Begin(kNoRound);
  said_.Forget();
}

JobWatch::Orders JobWatch::OnWord(Incarnation from, NodeWord word, MonoTime now) {
  Orders out;
  if (auto* aborted = std::get_if<RankAborted>(&word)) {
    Append(aborts_.OnWord(from, *aborted, now), out);
    return out;
  }
  if (auto* calls = std::get_if<NodeLastCalls>(&word)) {
    Append(aborts_.OnWord(from, std::move(*calls)), out);
    return out;
  }
  const NodeTable::Node* const node = nodes_.Find(from);
  if (node == nullptr) return out;
  if (auto* arrivals = std::get_if<NodeArrivals>(&word)) {
    SayLate(late_.OnWord(from, std::move(*arrivals), now), out);
    return out;
  }
  if (auto* summary = std::get_if<NodeSummary>(&word)) {
    On(node->about, std::move(*summary), now, out);
  }
  if (auto* details = std::get_if<NodeDetails>(&word)) {
    On(node->about, std::move(*details), now, out);
  }
  if (auto* stacks = std::get_if<NodeStacks>(&word)) On(node->about, std::move(*stacks));
  Advance(now, out);
  return out;
}

JobWatch::Orders JobWatch::Tick(MonoTime now) {
  Orders out;
  Append(aborts_.Tick(now), out);
  if (!IsWatching()) return out;
  SayLate(late_.Tick(now), out);
  Advance(now, out);
  return out;
}

MonoTime JobWatch::NextDeadline() const {
  MonoTime next = aborts_.NextDeadline();
  if (!IsWatching()) return next;
  next = Min(next, late_.NextDeadline());
  if (stage_ != Stage::kListening) return Min(next, deadline_);
  return Min(next, Min(NextQuestion(), said_.NextDeadline()));
}

// --- What the nodes say

void JobWatch::On(const WatchedNode& node, NodeSummary&& summary, MonoTime now, Orders& out) {
  judge_.limits().history().Add(summary.learned, nodes_.TakeLearned(node.agent, summary.learned));
  if (summary.round != nodes_.round()) return;
  Append(late_.OnSummary(node.agent, summary.arrival_window, now), out);
  const auto slow = paces_.OnPaces(node, summary.paces);
  TakeSummary(node, std::move(summary), now, out);
  if (slow) TellAll(SaySlow{nodes_.round(), slow->slow.empty(), slow->text}, out);
}

void JobWatch::TakeSummary(const WatchedNode& node, NodeSummary&& summary, MonoTime now,
                           Orders& out) {
  const bool was_silent = nodes_.IsSomebodySilent();
  nodes_.Take(node.agent, std::move(summary));
  // The first that is silent, and the end of all silences, are looked into at once.
  if (was_silent != nodes_.IsSomebodySilent()) next_question_ = Min(next_question_, now);
  aborts_.OnSummary(node.agent);
  judge_.limits().SetTimeout(nodes_.hang_timeout());
  SayOfTheEnd(ends_.OnEnded(nodes_.num_ended(), now), out);
}

bool JobWatch::IsAnswer(const WatchedNode& node, Stage stage, uint64_t question) {
  return stage_ == stage && question == question_ && awaited_.contains(node.agent);
}

void JobWatch::On(const WatchedNode& node, NodeDetails&& details, MonoTime now, Orders& out) {
  On(node, std::move(details.summary), now, out);
  if (!IsAnswer(node, Stage::kAsking, details.question)) return;
  if (details.evidence.round != nodes_.round()) return;
  awaited_.erase(node.agent);
  details_.Take(node, std::move(details));
}

void JobWatch::On(const WatchedNode& node, NodeStacks&& stacks) {
  if (!IsAnswer(node, Stage::kGathering, stacks.question)) return;
  awaited_.erase(node.agent);
  stacks_.Take(node, std::move(stacks));
}

// Those who wait for the start may tell nothing themselves, and the node of rank 0 have none of
// them.
bool JobWatch::WantsDetails() const {
  return nodes_.IsSomebodySilent() || judge_.HasIncident() || nodes_.IsStartSilent();
}

// Ranks that have ended are not asked for at once: the others end soon after.
MonoTime JobWatch::NextQuestion() const {
  if (WantsDetails()) return next_question_;
  return std::max(next_question_, ends_.NextQuestion());
}

void JobWatch::SayOfTheEnd(const std::optional<EndWatch::Said>& said, Orders& out) const {
  if (!said) return;
  if (said->is_over) return TellAll(SayRecovery{nodes_.round(), said->text}, out);
  TellAll(SayNotice{.round = nodes_.round(), .text = said->text, .named = said->named}, out);
}

void JobWatch::SayLate(const std::optional<std::string>& words, Orders& out) const {
  if (words) TellAll(SaySlow{nodes_.round(), /*is_over=*/false, *words}, out);
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
  if (const SayVerdict* again = said_.Tick(now)) {
    for (const Incarnation holder : nodes_.OfRanks(again->to_end)) {
      out.push_back(OrderTo{holder, *again});
    }
  }
  if (now >= NextQuestion()) Ask(now, out);
}

void JobWatch::Ask(MonoTime now, Orders& out) {
  stage_ = Stage::kAsking;
  ++question_;
  deadline_ = now + kTimeForDetails;
  details_.Begin(nodes_.round());
  awaited_.clear();
  for (OrderTo& order : nodes_.TellAll(AskDetails{question_, nodes_.round()})) {
    awaited_.insert(order.to);
    out.push_back(std::move(order));
  }
  const absl::Duration spread =
      kBetweenQuestions * static_cast<double>(nodes_.size()) / static_cast<double>(kNodesPerSecond);
  // What has been judged is only looked at to see whether it goes on.
  next_question_ =
      now + (said_.IsSaid() ? kBetweenQuestionsMax
                            : std::clamp(spread, kBetweenQuestions, kBetweenQuestionsMax));
}

void JobWatch::Decide(MonoTime now, Orders& out) {
  stage_ = Stage::kListening;
  awaited_.clear();
  if (details_.IsHeld()) return;
  const bool is_silent = judge_.Hear(details_.Silences(nodes_));
  if (!judge_.HasIncident()) said_.Forget();  // what it was about goes on
  SayOfTheEnd(ends_.Listen(details_.evidence(), judge_.HasIncident(), now), out);
  if (!is_silent) {
    // Each rank that has not come does something: the store goes on telling that each second.
    const bool is_at_start = nodes_.IsStartSilent() && !nodes_.IsSomebodySilent();
    if (is_at_start) next_question_ = now + kBetweenQuestionsMax;
    return;
  }
  details_.Finish(nodes_);
  for (const WatchEffect& effect : judge_.Judge(Diagnose(details_.evidence()))) {
    if (const auto* notice = std::get_if<Notice>(&effect)) {
      Notify(*notice, out);
    } else if (const auto* recovery = std::get_if<Recovery>(&effect)) {
      if (said_.IsActedOn()) continue;
      TellAll(SayRecovery{nodes_.round(), recovery->text}, out);
    } else {
      Gather(std::get<Verdict>(effect), now, out);
    }
  }
}

void JobWatch::Notify(const Notice& notice, Orders& out) const {
  SayNotice say{.round = nodes_.round(),
                .finding = notice.diagnosis.finding,
                .text = absl::StrCat(notice.text, details_.DescribeUnseen(nodes_))};
  for (const RankReport& rank : details_.ReportsOfNamed(notice.diagnosis)) {
    absl::StrAppend(&say.text, "; ", hangs::InWords(rank));
    say.named.push_back(rank.rank);
  }
  TellAll(say, out);
}

void JobWatch::Gather(const Verdict& verdict, MonoTime now, Orders& out) {
  stage_ = Stage::kGathering;
  ++question_;
  deadline_ = now + kTimeForStacks;
  const Diagnosis& diagnosis = verdict.diagnosis;
  details_.Select(nodes_, diagnosis.culprits, kNodesAtFaultAsked, awaited_);
  details_.Select(nodes_, diagnosis.waiting, awaited_.size() + kNodesWaitingAsked, awaited_);
  // Who has come meanwhile, the store knows.
  if (!details_.gatherings().empty()) {
    details_.Select(nodes_, {0}, awaited_.size() + 1, awaited_);
  }
  AskStacks ask{.question = question_, .round = nodes_.round(), .first = diagnosis.culprits};
  ask.first.resize(std::min(ask.first.size(), kRanksNamedMax));
  for (const Incarnation agent : awaited_) out.push_back(OrderTo{agent, ask});
  std::vector<RankReport> reports;
  for (const RankEvidence& rank : details_.evidence().ranks) {
    const NodeTable::Node* node = nodes_.OfRank(rank.rank);
    if (node != nullptr && awaited_.contains(node->about.agent)) reports.push_back(ReportOf(rank));
  }
  stacks_.Begin(question_, nodes_.round(), verdict, std::move(reports), now);
  if (awaited_.empty()) Conclude(now, out);
}

void JobWatch::Conclude(MonoTime now, Orders& out) {
  stage_ = Stage::kListening;
  next_question_ = std::max(next_question_, now + kBetweenQuestions);
  if (stacks_.HasMoved()) {
    const std::string what = stacks_.verdict().diagnosis.Describe();
    TellAll(SayRecovery{nodes_.round(), absl::StrCat("it goes on: ", what)}, out);
    return;
  }
  SayVerdict say = stacks_.MakeVerdict(details_.gatherings(), details_.DescribeUnseen(nodes_), now);
  std::string why_not_replaced;
  if (Replace(say, why_not_replaced, out)) return said_.LeaveToOthers();
  const bool ends = std::any_of(say.to_end.begin(), say.to_end.end(), [&](int rank) {
    const NodeTable::Node* node = nodes_.OfRank(rank);
    return node != nullptr && node->summary && node->summary->ends_workers;
  });
  if (!ends) say.to_end.clear();
  say.action = ActionInWords(ends, why_not_replaced);
  TellAll(say, out);
  if (!ends) return said_.OnlySay();
  said_.SayUntilDone(std::move(say), now);
}

bool JobWatch::Replace(SayVerdict& say, std::string& why_not, Orders& out) {
  const absl::btree_set<Incarnation> acting = nodes_.OfRanks(say.to_end);
  const bool is_wanted = !acting.empty() && std::all_of(acting.begin(), acting.end(), [&](auto id) {
    const auto& summary = nodes_.Find(id)->summary;
    return summary && summary->may_replace;
  });
  if (!is_wanted) return false;
  const absl::btree_set<Incarnation> at_fault = nodes_.OfRanks(say.diagnosis.culprits);
  why_not = WhyNotReplaced(say.diagnosis, at_fault);
  if (!why_not.empty()) return false;
  std::vector<std::string> names;
  for (const Incarnation node : at_fault) names.push_back(nodes_.Find(node)->about.name);
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
  if (at_fault.empty()) return "no rank is known to be at fault";
  if (IsOfTheProgram(diagnosis.finding)) return "the program is at fault, not the node";
  if (diagnosis.confidence < kConfidenceToAct) return "which node is at fault is uncertain";
  if (static_cast<int>(at_fault.size()) > nodes_.spares().num_nodes) {
    return "the job has no node to spare";
  }
  for (const Incarnation agent : at_fault) {
    const NodeTable::Node& node = *nodes_.Find(agent);
    const std::string& name = node.about.name;
    if (agent == nodes_.spares().host) return absl::StrCat(name, " hosts the rendezvous");
    if (!stacks_.HasShown(agent)) return absl::StrCat(name, " has not shown what its ranks do");
    if (!node.summary->may_replace) return absl::StrCat(name, " has another --watch");
  }
  return "";
}

void JobWatch::TellAll(const WatchOrder& order, Orders& out) const {
  Append(nodes_.TellAll(order), out);
}

}  // namespace muster::hangs

#include "rendezvous/hangs/judge/job_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::hangs {
namespace {

// The time between two questions is longer in large jobs, so that they cost them no more than
// renewals do.
constexpr size_t kNodesPerSecond = 256;
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
  stragglers_.StartRound();
  aborts_.StartRound();
  nodes_.StartRound(round, std::move(nodes));
  ends_.StartRound(round, nodes_.num_ranks());
  is_watching_ = true;
}

void JobWatch::StopRound() {
  is_watching_ = false;
  details_ = {};
  stacks_ = {};
  said_.Forget();
}

JobWatch::Orders JobWatch::OnWord(Incarnation from, NodeWord word, MonoTime now) {
  Orders out;
  const NodeTable::Node* const node = nodes_.Find(from);
  const bool is_of_abort =
      std::holds_alternative<RankAborted>(word) || std::holds_alternative<NodeLastCalls>(word);
  if (node == nullptr || (!is_watching_ && !is_of_abort)) return out;
  std::visit([&](auto&& each) { On(node->about, std::move(each), now, out); }, std::move(word));
  Advance(now, out);
  return out;
}

JobWatch::Orders JobWatch::Tick(MonoTime now) {
  Orders out;
  Advance(now, out);
  return out;
}

MonoTime JobWatch::NextDeadline() const {
  const MonoTime next = aborts_.NextDeadline();
  if (!is_watching_) return next;
  const MonoTime own = IsAsking()
                           ? Min(details_.poll().NextDeadline(), stacks_.poll().NextDeadline())
                           : Min(NextQuestion(), said_.NextDeadline());
  return Min(Min(next, stragglers_.NextDeadline()), own);
}

// --- What the nodes say

void JobWatch::On(const WatchedNode& node, NodeSummary&& summary, MonoTime now, Orders& out) {
  judge_.limits().history().Add(summary.learned, nodes_.TakeLearned(node.agent, summary.learned));
  if (summary.round != nodes_.round()) return;
  const bool was_silent = nodes_.IsSomebodySilent();
  nodes_.Take(node.agent, std::move(summary));
  // The first that is silent, and the end of all silences, are looked into at once.
  if (was_silent != nodes_.IsSomebodySilent()) next_question_ = Min(next_question_, now);
  judge_.limits().SetTimeout(nodes_.hang_timeout());
  if (const auto say = ends_.OnEnded(nodes_.num_ended(), now)) TellAll(*say, out);
  Append(stragglers_.OnSummary(nodes_, node.agent, now), out);
}

void JobWatch::On(const WatchedNode& node, NodeDetails&& details, MonoTime now, Orders& out) {
  On(node, std::move(details.summary), now, out);
  if (details.evidence.round == nodes_.round()) details_.Take(node, std::move(details));
}

void JobWatch::On(const WatchedNode& node, NodeStacks&& stacks, MonoTime, Orders&) {
  stacks_.Take(node, std::move(stacks));
}

void JobWatch::On(const WatchedNode& node, NodeArrivals&& arrivals, MonoTime now, Orders&) {
  if (arrivals.round == nodes_.round()) stragglers_.OnWord(node.agent, std::move(arrivals), now);
}

void JobWatch::On(const WatchedNode& node, RankAborted&& aborted, MonoTime now, Orders& out) {
  if (aborted.round != nodes_.round()) return;
  // A node whose first summary has not come yet takes part, too.
  if (!nodes_.Find(node.agent)->summary) nodes_.Take(node.agent, {.round = aborted.round});
  Append(aborts_.OnWord(nodes_, node, aborted, now), out);
}

void JobWatch::On(const WatchedNode& node, NodeLastCalls&& calls, MonoTime, Orders&) {
  if (calls.round == nodes_.round()) aborts_.OnWord(node, std::move(calls));
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

// --- What follows

void JobWatch::Advance(MonoTime now, Orders& out) {
  Append(aborts_.Tick(nodes_, now), out);
  if (!is_watching_) return;
  Append(stragglers_.Tick(nodes_, now), out);
  if (details_.poll().IsOver(now)) Decide(now, out);
  if (stacks_.poll().IsOver(now)) Conclude(now, out);
  if (IsAsking()) return;
  if (const SayVerdict* again = said_.Tick(now)) {
    for (const Incarnation holder : nodes_.OfRanks(again->to_end)) {
      out.push_back(OrderTo{holder, *again});
    }
  }
  if (now >= NextQuestion()) Ask(now, out);
}

void JobWatch::Ask(MonoTime now, Orders& out) {
  Append(details_.Ask(++question_, nodes_, now), out);
  const absl::Duration spread =
      kBetweenQuestions * static_cast<double>(nodes_.size()) / static_cast<double>(kNodesPerSecond);
  // What has been judged is only looked at to see whether it goes on.
  next_question_ =
      now + (said_.IsSaid() ? kBetweenQuestionsMax
                            : std::clamp(spread, kBetweenQuestions, kBetweenQuestionsMax));
}

void JobWatch::Decide(MonoTime now, Orders& out) {
  details_.Close();
  if (details_.IsHeld()) return;
  const bool is_silent = judge_.Hear(details_.Silences(nodes_));
  if (!judge_.HasIncident()) said_.Forget();  // what it was about goes on
  if (const auto say = ends_.Listen(details_.evidence(), judge_.HasIncident(), now)) {
    TellAll(*say, out);
  }
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
                .text = absl::StrCat(notice.diagnosis.Describe(), details_.DescribeUnseen(nodes_))};
  for (const RankReport& rank : details_.ReportsOfNamed(notice.diagnosis)) {
    absl::StrAppend(&say.text, "; ", hangs::InWords(rank));
    say.named.push_back(rank.rank);
  }
  TellAll(say, out);
}

void JobWatch::Gather(const Verdict& verdict, MonoTime now, Orders& out) {
  const Diagnosis& diagnosis = verdict.diagnosis;
  absl::btree_set<Incarnation> asked;
  details_.Select(nodes_, diagnosis.culprits, kNodesAtFaultAsked, asked);
  details_.Select(nodes_, diagnosis.waiting, asked.size() + kNodesWaitingAsked, asked);
  // Who has come meanwhile, the store knows.
  if (!details_.gatherings().empty()) {
    details_.Select(nodes_, {0}, asked.size() + 1, asked);
  }
  AskStacks ask{.question = ++question_, .round = nodes_.round(), .first = diagnosis.culprits};
  ask.first.resize(std::min(ask.first.size(), kRanksNamedMax));
  Append(stacks_.Ask(std::move(ask), asked, verdict, now), out);
  for (const RankEvidence& rank : details_.evidence().ranks) {
    const NodeTable::Node* node = nodes_.OfRank(rank.rank);
    if (node != nullptr && asked.contains(node->about.agent)) stacks_.Expect(ReportOf(rank));
  }
}

void JobWatch::Conclude(MonoTime now, Orders& out) {
  stacks_.Close();
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
    if (!stacks_.poll().HasAnswered(agent))
      return absl::StrCat(name, " has not shown what its ranks do");
    if (!node.summary->may_replace) return absl::StrCat(name, " has another --watch");
  }
  return "";
}

void JobWatch::TellAll(const WatchOrder& order, Orders& out) const {
  Append(nodes_.TellAll(order), out);
}

}  // namespace muster::hangs

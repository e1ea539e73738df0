#include "rendezvous/hangs/judge/stragglers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::hangs {
namespace {

constexpr double kSlower = 1.10;       // than the median
constexpr double kDeviations = 5;      // from it
constexpr double kLeastSpread = 0.01;  // of the median, however equal the ranks are
// The median of deviations as a standard deviation, where they are normal.
constexpr double kNormal = 1.4826;
constexpr size_t kNamedMax = 4;

bool IsStepping(const Pulse& pulse) {
  return pulse.phase == Phase::kIdle ||
         (pulse.phase >= Phase::kForward && pulse.phase <= Phase::kUpdate);
}

// The median; for an even number of values the lower of the two in the middle.
double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + (static_cast<std::ptrdiff_t>(values.size()) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Describe(const std::vector<int>& slow, const std::vector<std::string>& factors,
                     absl::Duration median) {
  if (slow.empty()) return "no rank is slow any more";
  return absl::StrCat(RanksInWords(slow), slow.size() == 1 ? " is" : " are",
                      " slow, not hung: ", slow.size() == 1 ? "its" : "their",
                      " own part of a step, not counting waits for others, takes ",
                      NamesInWords(factors, static_cast<int>(slow.size())),
                      " times the median of all ranks, which is ", muster::InWords(median));
}

// --- By records

constexpr double kNearlyEvery = 0.9;
constexpr double kTimesTheSpread = 3;
constexpr double kTimesTheError = 3;
constexpr size_t kRowsMin = 20;
constexpr absl::Duration kLateMin = absl::Milliseconds(10);
// A rank is told from the first of the two on: 200 ms are worth it however long the steps are.
constexpr double kShareOfAStep = 0.1;
constexpr absl::Duration kLateEnough = absl::Milliseconds(200);

constexpr int kSomeOtherRank = -1;

// When some rank came, by which node's answer.
struct Coming {
  MonoTime at;
  size_t node = 0;
  int rank = kSomeOtherRank;
};

// The collectives of one group that all nodes have which use it, oldest first; in each who came
// last is the first.
struct GroupRows {
  std::string label;
  bool is_on_device = false;
  std::vector<std::vector<Coming>> rows;
};

GroupRows RowsOf(const std::string& name, const std::vector<ArrivalsAt>& nodes) {
  GroupRows out;
  std::map<int64_t, std::vector<Coming>> by_sequence;
  std::ptrdiff_t num_nodes = 0;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const GroupArrivals& group : nodes[n].groups) {
      if (group.name != name) continue;
      ++num_nodes;
      out.label = group.label;
      out.is_on_device = out.is_on_device || group.is_on_device;
      for (const ArrivalRow& in : group.rows) {
        std::vector<Coming>& row = by_sequence[in.sequence];
        row.push_back({nodes[n].answered_at - in.last_ago, n, in.last_rank});
        if (in.num_ranks == 1) continue;
        row.push_back({nodes[n].answered_at - in.second_ago, n});
        row.push_back({nodes[n].answered_at - in.first_ago, n});
      }
    }
  }
  for (auto& [sequence, row] : by_sequence) {
    const auto num_told = std::count_if(
        row.begin(), row.end(), [](const Coming& one) { return one.rank != kSomeOtherRank; });
    if (num_told != num_nodes || row.size() < 2) continue;
    std::stable_sort(row.begin(), row.end(),
                     [](const Coming& a, const Coming& b) { return b.at < a.at; });
    out.rows.push_back(std::move(row));
  }
  const size_t too_many = out.rows.size() - std::min(out.rows.size(), kArrivalRowsMax);
  out.rows.erase(out.rows.begin(), out.rows.begin() + static_cast<std::ptrdiff_t>(too_many));
  return out;
}

absl::Duration Median(std::vector<absl::Duration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Late {
  int rank = 0;
  std::string words;
};

std::optional<Late> Judge(const GroupRows& group, const std::vector<ArrivalsAt>& nodes) {
  const auto& rows = group.rows;
  if (rows.size() < kRowsMin) return std::nullopt;
  std::map<int, size_t> times_last;
  for (const auto& row : rows) ++times_last[row[0].rank];
  const auto most =
      std::max_element(times_last.begin(), times_last.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (static_cast<double>(most->second) < kNearlyEvery * static_cast<double>(rows.size())) {
    return std::nullopt;
  }
  std::vector<absl::Duration> late, spread, error;
  for (const auto& row : rows) {
    if (row[0].rank != most->first) continue;
    late.push_back(row[0].at - row[1].at);
    spread.push_back(row[1].at - row.back().at);
    // One node has one clock.
    const bool is_one = row[0].node == row[1].node;
    error.push_back(is_one ? absl::ZeroDuration()
                           : nodes[row[0].node].error + nodes[row[1].node].error);
  }
  const absl::Duration usual = Median(late);
  const absl::Duration others = Median(spread);
  const absl::Duration step =
      (rows.back()[0].at - rows.front()[0].at) / static_cast<int64_t>(rows.size() - 1);
  const absl::Duration least = std::max(kLateMin, std::min(kShareOfAStep * step, kLateEnough));
  if (usual < least || usual < kTimesTheSpread * others || usual < kTimesTheError * Median(error)) {
    return std::nullopt;
  }
  return Late{
      most->first,
      absl::StrCat("rank ", most->first, " is slow, not hung: it comes ", muster::InWords(usual),
                   " after the others, and last to ", most->second, " of the last ", rows.size(),
                   " collectives of group ", group.label,
                   group.is_on_device ? "; this is when the host calls them, not GPU time" : "")};
}

// All ranks that are known, by rank.
std::vector<RankPace> PacesOf(const NodeTable& nodes) {
  std::vector<RankPace> all;
  for (const auto& [agent, node] : nodes) {
    if (!node.summary) continue;
    const std::vector<absl::Duration>& own = node.summary->paces.own;
    for (int i = 0; i < std::min(node.about.num_ranks, static_cast<int>(own.size())); ++i) {
      if (own[i] > absl::ZeroDuration()) all.push_back({node.about.first_rank + i, own[i]});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const RankPace& a, const RankPace& b) { return a.rank < b.rank; });
  return all;
}

Stragglers::Orders Say(const NodeTable& nodes, const std::optional<Stragglers::Change>& change) {
  if (!change) return {};
  return nodes.TellAll(SaySlow{nodes.round(), change->slow.empty(), change->text});
}

}  // namespace

void PaceMeter::Begin(const std::vector<Pulse>& pulses, MonoTime now) {
  starts_.clear();
  began_ = now;
  for (const Pulse& pulse : pulses) {
    if (pulse.is_told) starts_[pulse.rank] = {pulse.num_steps, pulse.waited};
  }
}

bool PaceMeter::Listen(const std::vector<Pulse>& pulses, MonoTime now) {
  const bool was_away = now < last_ || now - last_ > kGapMax;
  last_ = now;
  std::vector<RankPace> paces;
  bool is_whole = !starts_.empty() && !was_away && now - began_ >= kPaceWindow;
  bool is_void = starts_.empty() || was_away;
  for (const Pulse& pulse : pulses) {
    if (!pulse.is_told) continue;
    const auto start = starts_.find(pulse.rank);
    is_void = is_void || start == starts_.end() || !IsStepping(pulse);
    if (is_void) break;
    const int64_t steps = pulse.num_steps - start->second.num_steps;
    is_whole = is_whole && steps >= kPaceSteps;
    if (!is_whole) continue;
    const absl::Duration waited = pulse.waited - start->second.waited;
    const absl::Duration own = std::max(now - began_ - waited, absl::ZeroDuration());
    paces.push_back({pulse.rank, own / steps});
  }
  if (is_void || (is_whole && paces.empty())) {
    Begin(pulses, now);
    return false;
  }
  if (!is_whole) return false;
  Begin(pulses, now);
  ++num_windows_;
  paces_ = std::move(paces);
  return true;
}

bool Stragglers::History::Add(bool was_slow, const Rule& rule) {
  windows = (windows << 1 | static_cast<uint32_t>(was_slow)) & rule.seen;
  const int times = std::popcount(windows);
  const bool before = is_slow;
  is_slow = times >= rule.from || (before && times > rule.until);
  return is_slow != before;
}

void Stragglers::Windows::Note(Incarnation from, int64_t window) {
  if (window == 0) {
    last.erase(from);
    are_new.erase(from);
  } else if (std::exchange(last[from], window) != window) {
    are_new.insert(from);
  }
}

Stragglers::Orders Stragglers::OnSummary(const NodeTable& nodes, Incarnation from, MonoTime now) {
  const NodeSummary& summary = *nodes.Find(from)->summary;
  paces_.Note(from, summary.paces.window);
  arrivals_.Note(from, summary.arrival_window);
  Orders out;
  if (paces_.AreAllNew()) {
    paces_.are_new.clear();
    out = Say(nodes, OnPaces(PacesOf(nodes)));
  }
  if (!arrivals_.AreAllNew() || poll_.IsOpen()) return out;
  arrivals_.are_new.clear();
  asked_at_ = now;
  answers_.clear();
  // The time tells the questions apart.
  const auto question = static_cast<uint64_t>(absl::ToInt64Microseconds(now.since_zero()));
  absl::btree_set<Incarnation> members;
  for (const auto& [agent, window] : arrivals_.last) members.insert(agent);
  poll_.Ask(question, std::move(members), now + kTimeForArrivals);
  for (OrderTo& order : poll_.Tell(AskArrivals{question, nodes.round()})) {
    out.push_back(std::move(order));
  }
  return out;
}

void Stragglers::OnWord(Incarnation from, NodeArrivals word, MonoTime now) {
  if (!poll_.Take(from, word.question)) return;
  const absl::Duration error = (now - asked_at_) / 2;
  answers_.push_back({asked_at_ + error, error, std::move(word.groups)});
}

// Nothing is known of a node that has not answered in time, and so nothing of the others: it may
// hold the one that comes last.
Stragglers::Orders Stragglers::Tick(const NodeTable& nodes, MonoTime now) {
  if (!poll_.IsOver(now)) return {};
  const bool is_whole = poll_.HaveAllAnswered();
  poll_.Close();
  const std::vector<ArrivalsAt> answers = std::exchange(answers_, {});
  return is_whole ? Say(nodes, OnArrivals(answers)) : Orders();
}

std::optional<Stragglers::Change> Stragglers::OnPaces(const std::vector<RankPace>& paces) {
  if (paces.size() < 2) return std::nullopt;
  std::vector<double> own;
  for (const RankPace& pace : paces) own.push_back(absl::ToDoubleSeconds(pace.own));
  const double median = LowerMedian(own);
  if (median <= 0) return std::nullopt;
  std::vector<double> deviations;
  for (const double each : own) deviations.push_back(std::abs(each - median));
  const double spread = std::max(kNormal * LowerMedian(deviations), kLeastSpread * median);
  Change change;
  std::vector<std::string> factors;
  bool has_changed = false;
  for (size_t i = 0; i < paces.size(); ++i) {
    History& history = by_marks_[paces[i].rank];
    const bool was_slow = own[i] > kSlower * median && own[i] - median > kDeviations * spread;
    has_changed = history.Add(was_slow, kMarks) || has_changed;
    if (!history.is_slow) continue;
    change.slow.push_back(paces[i].rank);
    if (factors.size() < kNamedMax) factors.push_back(absl::StrFormat("%.1f", own[i] / median));
  }
  if (!has_changed) return std::nullopt;
  change.text = Describe(change.slow, factors, absl::Seconds(median));
  return change;
}

std::optional<Stragglers::Change> Stragglers::OnArrivals(const std::vector<ArrivalsAt>& nodes) {
  absl::btree_set<std::string> groups;
  for (const ArrivalsAt& node : nodes) {
    for (const GroupArrivals& group : node.groups) groups.insert(group.name);
  }
  absl::btree_set<int> late;
  Change change;
  for (const std::string& group : groups) {
    const std::optional<Late> found = Judge(RowsOf(group, nodes), nodes);
    if (!found || !late.insert(found->rank).second) continue;
    if (!by_records_[found->rank].Add(true, kRecords)) continue;
    change.slow.push_back(found->rank);
    absl::StrAppend(&change.text, change.text.empty() ? "" : "; ", found->words);
  }
  for (auto& [rank, history] : by_records_) {
    if (!late.contains(rank)) history.Add(false, kRecords);
  }
  if (change.slow.empty()) return std::nullopt;
  return change;
}

}  // namespace muster::hangs

#include "rendezvous/hangs/judge/late_ranks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::hangs {
namespace {

constexpr double kNearlyEvery = 0.9;
constexpr double kTimesTheSpread = 3;
constexpr double kTimesTheError = 3;
constexpr absl::Duration kLateMin = absl::Milliseconds(10);
// A rank is told from the first of the two on: 200 ms are worth it however long the steps are.
constexpr double kShareOfAStep = 0.1;
constexpr absl::Duration kLateEnough = absl::Milliseconds(200);

// When some rank came, by which node's answer.
struct Coming {
  MonoTime at;
  size_t node = 0;
  int rank = 0;
};

// One collective of all nodes.
struct Row {
  std::vector<Coming> latest;  // the last two, the last first
  MonoTime first;
  size_t num_nodes = 0;
};

void Add(const ArrivalRow& in, const ArrivalsAt& node, size_t index, Row& row) {
  const MonoTime first = node.answered_at - in.first_ago;
  row.first = row.num_nodes++ == 0 ? first : Min(row.first, first);
  row.latest.push_back({node.answered_at - in.last_ago, index, in.last_rank});
  constexpr int kSomeOtherRank = -1;
  if (in.num_ranks > 1) {
    row.latest.push_back({node.answered_at - in.second_ago, index, kSomeOtherRank});
  }
  std::stable_sort(row.latest.begin(), row.latest.end(),
                   [](const Coming& a, const Coming& b) { return b.at < a.at; });
  if (row.latest.size() > 2) row.latest.resize(2);
}

absl::Duration Median(std::vector<absl::Duration> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One group's rows, those of the group that all nodes have; oldest first.
struct GroupRows {
  std::string label;
  bool is_on_device = false;
  std::vector<Row> rows;
};

std::vector<GroupRows> Merge(const std::vector<ArrivalsAt>& nodes) {
  struct Found {
    GroupRows group;
    std::map<int64_t, Row> rows;
    size_t num_nodes = 0;
  };
  std::map<std::string, Found> groups;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const GroupArrivals& in : nodes[n].groups) {
      Found& found = groups[in.name];
      found.group.label = in.label;
      found.group.is_on_device = found.group.is_on_device || in.is_on_device;
      ++found.num_nodes;
      for (const ArrivalRow& row : in.rows) Add(row, nodes[n], n, found.rows[row.sequence]);
    }
  }
  std::vector<GroupRows> out;
  for (auto& [name, found] : groups) {
    std::vector<Row>& rows = found.group.rows;
    for (auto& [sequence, row] : found.rows) {
      const bool is_whole = row.num_nodes == found.num_nodes && row.latest.size() == 2;
      if (is_whole) rows.push_back(std::move(row));
    }
    const size_t too_many = rows.size() - std::min(rows.size(), LateRanks::kRows);
    rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(too_many));
    out.push_back(std::move(found.group));
  }
  return out;
}

// The error between the clocks of the last two ranks; none on one node, which has one clock.
absl::Duration ErrorOf(const Row& row, const std::vector<ArrivalsAt>& nodes) {
  const size_t a = row.latest[0].node;
  const size_t b = row.latest[1].node;
  return a == b ? absl::ZeroDuration() : nodes[a].error + nodes[b].error;
}

struct Late {
  int rank = 0;
  std::string words;
};

std::optional<Late> Judge(const GroupRows& group, const std::vector<ArrivalsAt>& nodes) {
  const std::vector<Row>& rows = group.rows;
  if (rows.size() < LateRanks::kRowsMin) return std::nullopt;
  std::map<int, size_t> times_last;
  for (const Row& row : rows) ++times_last[row.latest[0].rank];
  const auto most =
      std::max_element(times_last.begin(), times_last.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (static_cast<double>(most->second) < kNearlyEvery * static_cast<double>(rows.size())) {
    return std::nullopt;
  }
  std::vector<absl::Duration> late, spread, error;
  for (const Row& row : rows) {
    if (row.latest[0].rank != most->first) continue;
    late.push_back(row.latest[0].at - row.latest[1].at);
    spread.push_back(row.latest[1].at - row.first);
    error.push_back(ErrorOf(row, nodes));
  }
  const absl::Duration usual = Median(late);
  const absl::Duration others = Median(spread);
  const absl::Duration step = (rows.back().latest[0].at - rows.front().latest[0].at) /
                              static_cast<int64_t>(rows.size() - 1);
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

}  // namespace

std::optional<std::string> LateRanks::OnWindow(const std::vector<ArrivalsAt>& nodes) {
  absl::btree_set<int> late;
  std::optional<std::string> words;
  for (const GroupRows& group : Merge(nodes)) {
    const std::optional<Late> found = Judge(group, nodes);
    if (!found || !late.insert(found->rank).second) continue;
    if (!late_before_.contains(found->rank) || !told_.insert(found->rank).second) continue;
    words = words ? absl::StrCat(*words, "; ", found->words) : found->words;
  }
  late_before_ = std::move(late);
  return words;
}

void LateWatch::StartRound(Round round) {
  round_ = round;
  windows_.clear();
  has_news_.clear();
  awaited_.clear();
  answers_.clear();
  late_ranks_.StartRound();
}

LateWatch::Orders LateWatch::OnSummary(Incarnation from, int64_t window, MonoTime now) {
  if (window == 0) {
    windows_.erase(from);
    has_news_.erase(from);
    return {};
  }
  if (std::exchange(windows_[from], window) != window) has_news_.insert(from);
  if (!awaited_.empty() || has_news_.size() < windows_.size()) return {};
  has_news_.clear();
  ++question_;
  asked_at_ = now;
  answers_.clear();
  Orders out;
  for (const auto& [agent, unused] : windows_) {
    awaited_.insert(agent);
    out.push_back({agent, AskArrivals{question_, round_}});
  }
  return out;
}

std::optional<std::string> LateWatch::OnWord(Incarnation from, NodeArrivals word, MonoTime now) {
  if (word.round != round_ || word.question != question_ || awaited_.erase(from) == 0) {
    return std::nullopt;
  }
  const absl::Duration error = (now - asked_at_) / 2;
  answers_.push_back({asked_at_ + error, error, std::move(word.groups)});
  return awaited_.empty() ? Conclude() : std::nullopt;
}

std::optional<std::string> LateWatch::Tick(MonoTime now) {
  return now >= NextDeadline() ? Conclude() : std::nullopt;
}

MonoTime LateWatch::NextDeadline() const {
  return awaited_.empty() ? MonoTime::InfiniteFuture() : asked_at_ + kTimeForArrivals;
}

// Nothing is known of a node that has not answered in time, and so nothing of the others: it may
// hold the one that comes last.
std::optional<std::string> LateWatch::Conclude() {
  const bool is_whole = awaited_.empty();
  awaited_.clear();
  const std::vector<ArrivalsAt> answers = std::exchange(answers_, {});
  return is_whole ? late_ranks_.OnWindow(answers) : std::nullopt;
}

}  // namespace muster::hangs

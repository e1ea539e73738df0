#include "rendezvous/hangs/judge/stragglers.h"

#include <algorithm>
#include <bit>
#include <cmath>
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
constexpr uint32_t kWindowsSeen = 0x1f;  // the last five
constexpr int kSlowFrom = 3;
constexpr int kSlowUntil = 1;
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

std::optional<Stragglers::Change> Stragglers::OnWindow(const std::vector<RankPace>& paces) {
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
    History& history = by_rank_[paces[i].rank];
    const bool is_slow = own[i] > kSlower * median && own[i] - median > kDeviations * spread;
    history.windows = (history.windows << 1 | static_cast<uint32_t>(is_slow)) & kWindowsSeen;
    const int times = std::popcount(history.windows);
    const bool before = history.is_slow;
    history.is_slow = times >= kSlowFrom || (before && times > kSlowUntil);
    has_changed = has_changed || before != history.is_slow;
    if (!history.is_slow) continue;
    change.slow.push_back(paces[i].rank);
    if (factors.size() < kNamedMax) factors.push_back(absl::StrFormat("%.1f", own[i] / median));
  }
  if (!has_changed) return std::nullopt;
  change.text = Describe(change.slow, factors, absl::Seconds(median));
  return change;
}

}  // namespace muster::hangs

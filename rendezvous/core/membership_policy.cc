#include "rendezvous/core/membership_policy.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "proto/base/backoff.h"
#include "rendezvous/core/network_split.h"
#include "rendezvous/core/waiting_list.h"

namespace muster::rendezvous {
namespace {

constexpr BackoffOptions kRestartBackoff{
    .initial = absl::Milliseconds(250), .factor = 2.0, .max = absl::Seconds(15)};
constexpr double kNoJitter = 1.0;

// `first` doubled `times` times, at most `most`.
absl::Duration Doubled(absl::Duration first, int times, absl::Duration most) {
  absl::Duration result = first;
  for (int i = 0; i < times && result < most; ++i) result *= 2;
  return std::min(result, most);
}

void DropForgiven(JobState& state, MonoTime now) {
  for (auto it = state.histories.begin(); it != state.histories.end();) {
    const bool is_forgiven =
        now >= std::max(it->second.last_change, it->second.held_until) + kForgivenAfter;
    it = is_forgiven ? state.histories.erase(it) : std::next(it);
  }
  // A bound against names without end; a dropped one starts over.
  while (state.histories.size() >= kMaxNodeHistories) {
    state.histories.erase(state.histories.begin());
  }
}

// The lower median over the other nodes that are here or have a history, or their mean if that is
// more: where nodes die by chance, half of them have not yet when one has twice.
int TypicalChangesBut(const JobState& state, const std::string& name) {
  std::vector<int> changes;
  for (const auto& [other, history] : state.histories) {
    if (other != name) changes.push_back(history.changes);
  }
  size_t others = 0;
  for (const auto& [unused, node] : state.nodes) others += node.report.node.name != name;
  // Those that are here without one; names that are gone stand for as many others.
  if (others > changes.size()) changes.resize(others);
  if (changes.empty()) return 0;
  const auto middle = changes.begin() + static_cast<std::ptrdiff_t>((changes.size() - 1) / 2);
  std::nth_element(changes.begin(), middle, changes.end());
  const int sum = std::accumulate(changes.begin(), changes.end(), 0);
  const int count = static_cast<int>(changes.size());
  return std::max(*middle, (sum + count - 1) / count);
}

// It was a member, and its going is the only change it has.
bool ComesBackForTheFirstTime(const JobState& state, Incarnation node) {
  const auto history = state.histories.find(state.nodes.at(node).report.node.name);
  return history != state.histories.end() && history->second.changes == 1 &&
         history->second.held_until == MonoTime();
}

}  // namespace

absl::Duration PauseAfter(int quick_ends) {
  if (quick_ends < 2) return absl::ZeroDuration();
  return ComputeBackoff(kRestartBackoff, quick_ends - 2, kNoJitter);
}

void RecordChange(JobState& state, const std::string& node_name, MonoTime now) {
  if (!state.histories.contains(node_name)) DropForgiven(state, now);
  NodeHistory& history = state.histories[node_name];
  if (now >= std::max(history.last_change, history.held_until) + kForgivenAfter) history = {};
  ++history.changes;
  history.last_change = now;
  const int beyond = history.changes - 2 * TypicalChangesBut(state, node_name);
  if (beyond < 2) return;
  history.held_until = now + Doubled(kFirstHoldBack, beyond - 2, kMaxHoldBack);
}

void RecordReturn(JobState& state, const std::string& node_name, MonoTime now) {
  const auto found = state.histories.find(node_name);
  if (found == state.histories.end()) return;
  found->second.held_until = std::max(found->second.held_until, now);
}

bool MayBeHeldBack(JobState& state, const std::string& name, MonoTime now) {
  if (2 * (state.held_back.size() + 1) <= state.nodes.size()) return true;
  NodeHistory& history = state.histories.at(name);
  const bool is_least =
      state.held_back.empty() || history.held_until <= state.held_back.begin()->first.first;
  if (is_least) {
    history.held_until = now;
    return false;
  }
  NodeState& least = state.nodes.at(state.held_back.begin()->second);
  state.histories.at(least.report.node.name).held_until = now;
  PutOnWaitingList(state, least, now);
  return true;
}

bool IsHeldBack(const JobState& state, const std::string& node_name, MonoTime now) {
  if (state.settings->is_static) return false;
  const auto found = state.histories.find(node_name);
  return found != state.histories.end() && now < found->second.held_until;
}

std::vector<Incarnation> Newcomers(const JobState& state) {
  std::vector<Incarnation> newcomers;
  for (const auto& [unused, node] : state.joined) {
    if (MembersApartFrom(state, state.nodes.at(node)).empty()) newcomers.push_back(node);
  }
  return newcomers;
}

std::optional<MonoTime> GrowthTime(const JobState& state) {
  const bool has_place = static_cast<int>(state.members.size()) < state.settings->max_nodes;
  if (state.phase != JobPhase::kRunning || state.joined.empty() || !has_place) return std::nullopt;
  if (state.settings->is_static || !state.succeeded.empty()) return std::nullopt;
  if (state.stop_step) return std::nullopt;  // it ends soon by itself
  if (state.settings->scale_up == ScaleUp::kNever) return std::nullopt;
  const std::vector<Incarnation> newcomers = Newcomers(state);
  if (newcomers.empty()) return std::nullopt;
  const bool do_half_wait = newcomers.size() >= state.members.size();
  const absl::Duration hold_off =
      Doubled(kFirstGrowthHoldOff, do_half_wait ? 0 : state.hasty_changes, kMaxGrowthHoldOff);
  const bool is_first_return =
      std::any_of(newcomers.begin(), newcomers.end(),
                  [&](Incarnation node) { return ComesBackForTheFirstTime(state, node); });
  const MonoTime earliest = is_first_return ? std::max(state.joined_since, state.running_since)
                                            : std::max(state.joined_since + kGatherNewcomers,
                                                       state.running_since + hold_off);
  if (state.settings->scale_up != ScaleUp::kCheckpoint) return earliest;
  const bool has_come = state.committed_at && *state.committed_at >= earliest;
  return has_come ? state.committed_at : std::nullopt;
}

MonoTime NextRelease(const JobState& state) {
  if (state.held_back.empty()) return MonoTime::InfiniteFuture();
  return state.held_back.begin()->first.first;
}

int NodesToSpare(const JobState& state) {
  if (state.phase != JobPhase::kRunning || state.settings->is_static) return 0;
  if (state.stop_step || !state.succeeded.empty()) return 0;
  const size_t staying = state.members.size() - state.lost.size() + Newcomers(state).size();
  return std::max(0, static_cast<int>(staying) - state.settings->min_nodes);
}

void RecordRoundEnd(JobState& state, StopCause cause, MonoTime now) {
  if (cause != StopCause::kMembershipChange) return;
  ++state.membership_changes;
  const bool was_settled = now - state.running_since >= kSettledAfter;
  state.hasty_changes = was_settled ? 0 : state.hasty_changes + 1;
}

}  // namespace muster::rendezvous

#include "agent/watch/quiet_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace muster::agent {
namespace {

constexpr double kPatienceAfterARecovery = 3;
// Others become quiet soon after the first, where they wait for it: they are named together.
constexpr int kWindowsForTheOthers = 2;
// A page that was waited for is a page of bytes.
constexpr int64_t kPageBytes = 4096;

// A tick may be counted of the process and not yet of a thread that does not count.
constexpr int64_t kTicksUnsure = 1;

// What counts less than before has lost a process, which is something, too.
bool IsQuiet(const ProcessUse& before, const ProcessUse& now, absl::Duration elapsed) {
  const double ticks_max = 1 + QuietRanks::kBusyShare * absl::ToDoubleSeconds(elapsed) *
                                   static_cast<double>(sysconf(_SC_CLK_TCK));
  const int64_t ticks = now.cpu_ticks - before.cpu_ticks;
  const int64_t bytes =
      now.io_bytes - before.io_bytes + kPageBytes * (now.major_faults - before.major_faults);
  return ticks >= -kTicksUnsure && static_cast<double>(ticks) <= ticks_max && bytes >= 0 &&
         bytes <= QuietRanks::kBusyBytes;
}

}  // namespace

void QuietRanks::StartRound() {
  last_.reset();
  ranks_.clear();
  noticed_.clear();
}

absl::Duration QuietRanks::LongestQuiet() const {
  absl::Duration longest;
  for (const auto& [rank, state] : ranks_) longest = std::max(longest, state.quiet_for);
  return longest;
}

bool QuietRanks::IsTimeToSay() const {
  const absl::Duration longest = LongestQuiet();
  if (longest < limit_) return false;
  const bool is_settled = std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return entry.second.quiet_for >= limit_ || entry.second.quiet_for == absl::ZeroDuration();
  });
  return is_settled || longest >= limit_ + kWindowsForTheOthers * times_.window;
}

std::optional<QuietRanks::Change> QuietRanks::Listen(const std::vector<RankUse>& uses,
                                                     MonoTime now) {
  // A machine that was suspended, or an agent that was stopped, makes nobody quiet.
  absl::Duration elapsed;
  if (last_ && now > *last_) elapsed = std::min(now - *last_, 2 * times_.window);
  last_ = now;
  absl::btree_map<int, State> states;
  for (const RankUse& each : uses) {
    State state{.use = each.use};
    const auto before = ranks_.find(each.rank);
    if (before != ranks_.end() && IsQuiet(before->second.use, each.use, elapsed)) {
      state.quiet_for = before->second.quiet_for + elapsed;
    }
    states[each.rank] = state;
  }
  ranks_ = std::move(states);
  const auto is_quiet = [&](int rank) {
    const auto found = ranks_.find(rank);
    return found != ranks_.end() && found->second.quiet_for >= limit_;
  };
  if (!noticed_.empty()) {
    if (std::all_of(noticed_.begin(), noticed_.end(), is_quiet)) {
      noticed_for_ += elapsed;
      return std::nullopt;
    }
    limit_ = std::max(limit_, kPatienceAfterARecovery * noticed_for_);
    return Change{.is_over = true,
                  .quiet = std::exchange(noticed_, {}),
                  .busy = {},
                  .quiet_for = noticed_for_};
  }
  if (!IsTimeToSay()) return std::nullopt;
  Change change{.quiet_for = absl::InfiniteDuration()};
  for (const auto& [rank, state] : ranks_) {
    (is_quiet(rank) ? change.quiet : change.busy).push_back(rank);
    if (is_quiet(rank)) change.quiet_for = std::min(change.quiet_for, state.quiet_for);
  }
  noticed_ = change.quiet;
  noticed_for_ = change.quiet_for;
  return change;
}

}  // namespace muster::agent

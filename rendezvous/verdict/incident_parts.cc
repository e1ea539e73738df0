#include "rendezvous/verdict/incident_parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::verdict {

std::vector<StackGroup> MergeStacks(const std::vector<RankReport>& ranks) {
  std::map<std::vector<std::string>, std::vector<int>> by_frames;
  for (const RankReport& rank : ranks) {
    if (!rank.frames.empty()) by_frames[rank.frames].push_back(rank.rank);
  }
  std::vector<StackGroup> groups;
  for (auto& [frames, members] : by_frames) groups.push_back({std::move(members), frames});
  std::stable_sort(groups.begin(), groups.end(), [](const StackGroup& a, const StackGroup& b) {
    return a.ranks.size() > b.ranks.size();
  });
  return groups;
}

std::string PhaseInWords(Phase phase, const std::optional<int64_t>& step) {
  const std::string of_step = step ? absl::StrCat(" of step ", *step) : "";
  switch (phase) {
    case Phase::kStarting:
      return "has marked no phase";
    case Phase::kIdle:
      return step ? absl::StrCat("is between steps, before step ", *step)
                  : std::string("is between steps");
    default:
      return absl::StrCat("is in phase ", ToString(phase), of_step);
  }
}

std::string InWords(const RankReport& rank) {
  return absl::StrCat("rank ", rank.rank, rank.node.empty() ? "" : " on ", rank.node, " (pid ",
                      rank.pid, ") ", rank.phase, rank.doing.empty() ? "" : ", ", rank.doing,
                      ", silent for ", muster::InWords(rank.silent_for));
}

std::string ActionInWords(bool ends_workers) {
  return ends_workers ? "its worker is ended, and with it this attempt (--watch=restart)"
                      : "this is only reported (--watch=report); --watch=restart ends the "
                        "attempt, and starts the next one where --max_restarts allows it";
}

}  // namespace muster::verdict

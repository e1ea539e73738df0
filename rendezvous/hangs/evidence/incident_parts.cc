#include "rendezvous/hangs/evidence/incident_parts.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/words.h"

namespace muster::hangs {

absl::string_view ToString(ToldBy told_by) {
  constexpr std::array<absl::string_view, 5> kNames = {"unknown", "progress_board", "marks",
                                                       "torch", "torch_store"};
  return kNames[static_cast<size_t>(told_by)];
}

std::vector<StackGroup> MergeStacks(const std::vector<RankReport>& ranks,
                                    std::vector<std::string> RankReport::*which) {
  std::map<std::vector<std::string>, std::vector<int>> by_frames;
  for (const RankReport& rank : ranks) {
    if (!(rank.*which).empty()) by_frames[rank.*which].push_back(rank.rank);
  }
  std::vector<StackGroup> groups;
  for (auto& [frames, members] : by_frames) {
    std::sort(members.begin(), members.end());
    groups.push_back({std::move(members), frames});
  }
  std::stable_sort(groups.begin(), groups.end(), [](const StackGroup& a, const StackGroup& b) {
    return a.ranks.size() > b.ranks.size();
  });
  return groups;
}

namespace {

// Whether the frame is Python's own library, which stands between what waits and who called it, or
// a wrapper that PyTorch puts around its functions.
bool IsBetween(const std::string& frame) {
  return absl::StrContains(frame, "/torch/distributed/c10d_logger.py:") ||
         (absl::StrContains(frame, "/lib/python3") && !absl::StrContains(frame, "-packages/"));
}

}  // namespace

// The innermost and the outermost.
std::string PythonInWords(const std::vector<std::string>& frames) {
  constexpr size_t kFramesInWords = 4;
  std::vector<std::string> telling;
  for (const std::string& frame : frames) {
    if (!telling.empty() && IsBetween(frame)) continue;
    const size_t path = frame.find(" at ");
    const size_t file = frame.rfind('/');
    const bool has_folders = path != std::string::npos && file != std::string::npos && file > path;
    telling.push_back(has_folders ? absl::StrCat(frame.substr(0, path + 4), frame.substr(file + 1))
                                  : frame);
  }
  if (telling.size() > kFramesInWords) {
    telling.erase(telling.begin() + kFramesInWords - 1, telling.end() - 1);
  }
  return absl::StrJoin(telling, " < ");
}

std::string PhaseInWords(Phase phase, const std::optional<int64_t>& step) {
  const std::string of_step = step ? absl::StrCat(" of step ", *step) : "";
  switch (phase) {
    case Phase::kStarting:
      return "has marked no phase";
    case Phase::kIdle:
      return step ? absl::StrCat("is between steps, before step ", *step)
                  : std::string("is between steps");
    case Phase::kEnd:
      return "is behind its last step";
    default:
      return absl::StrCat("is in phase ", ToString(phase), of_step);
  }
}

std::string InWords(const RankReport& rank) {
  return absl::StrCat("rank ", rank.rank, rank.node.empty() ? "" : " on ", rank.node, " (pid ",
                      rank.pid, ") ", rank.phase,
                      rank.doing.empty() || rank.phase.empty() ? "" : ", ", rank.doing,
                      ", silent for ", muster::InWords(rank.silent_for));
}

std::string InWordsWithPython(const RankReport& rank) {
  const std::string stack = PythonInWords(rank.python);
  return absl::StrCat(InWords(rank), stack.empty() ? "" : ", in ", stack);
}

std::string ActionInWords(bool ends_workers, absl::string_view why_not_replaced) {
  if (!ends_workers) {
    return "this is only reported (--watch=report); --watch=restart ends the attempt, and starts "
           "the next one where --max_restarts allows it";
  }
  return absl::StrCat("its worker is ended, and with it this attempt (",
                      why_not_replaced.empty() ? "--watch=restart" : "--watch=replace, but ",
                      why_not_replaced, ")");
}

std::string ReplacementInWords(const std::vector<std::string>& nodes) {
  const int count = static_cast<int>(nodes.size());
  return absl::StrCat(NamesInWords(nodes, count), count == 1 ? " leaves" : " leave",
                      " the job, which goes on without ", count == 1 ? "it" : "them",
                      ", with spares where there are some (--watch=replace)");
}

}  // namespace muster::hangs

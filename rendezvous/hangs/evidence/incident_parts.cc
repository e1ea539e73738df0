#include "rendezvous/hangs/evidence/incident_parts.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
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

// The innermost of one thread that are the program's or PyTorch's, and then the innermost of the
// program's own files, or the outermost.
std::string ThreadInWords(absl::Span<const std::string> frames, size_t frames_max) {
  std::vector<std::string> telling;
  size_t own = 0;
  for (const std::string& frame : frames) {
    if (IsBetween(frame)) continue;
    if (own == telling.size() && absl::StrContains(frame, "-packages/")) ++own;
    const size_t path = frame.find(" at ");
    const size_t file = frame.rfind('/');
    const bool has_folders = path != std::string::npos && file != std::string::npos && file > path;
    telling.push_back(has_folders ? absl::StrCat(frame.substr(0, path + 4), frame.substr(file + 1))
                                  : frame);
  }
  if (telling.size() > frames_max) {
    const size_t last =
        own < frames_max - 1 ? telling.size() - 1 : std::min(own, telling.size() - 1);
    telling[frames_max - 1] = telling[last];
    telling.resize(frames_max);
  }
  return absl::StrJoin(telling, " < ");
}

bool BeginsAThread(const std::string& frame) { return absl::StartsWith(frame, kThreadFrame); }

}  // namespace

std::string PythonInWords(const std::vector<std::string>& frames) {
  constexpr size_t kFramesInWords = 4;
  constexpr size_t kThreadsInWords = 2;
  constexpr size_t kFramesOfAThread = 2;
  const auto end = std::find_if(frames.begin(), frames.end(), BeginsAThread);
  const size_t num_main = end - frames.begin();
  const absl::Span<const std::string> all(frames);
  std::string words = ThreadInWords(all.first(num_main), kFramesInWords);
  // The thread is in Python's own library alone.
  if (words.empty() && num_main > 0) words = frames[0];
  size_t num_threads = 0;
  for (size_t at = num_main; at < frames.size() && num_threads < kThreadsInWords; ++num_threads) {
    const auto next = std::find_if(frames.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                   frames.end(), BeginsAThread);
    std::vector<std::string> of_thread(frames.begin() + static_cast<std::ptrdiff_t>(at), next);
    const size_t name_end = of_thread[0].find(": ");
    const std::string name =
        of_thread[0].substr(kThreadFrame.size(), name_end - kThreadFrame.size());
    of_thread[0].erase(0, name_end + 2);
    absl::StrAppend(&words, words.empty() ? "" : "; ", "its thread ", name, " in ",
                    ThreadInWords(of_thread, kFramesOfAThread));
    at = next - frames.begin();
  }
  return words;
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

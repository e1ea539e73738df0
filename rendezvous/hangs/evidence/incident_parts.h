// What a report says of the ranks of a hang: collected by the agents, merged by the judge, written
// by each agent (agent/watch/incident.h).
//
// Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/progress_board.h"

namespace muster::hangs {

// What holds a thread in the kernel, as far as it is one of these.
enum class Hold { kUnknown, kLock, kDisk, kMemory };

// The source that tells what a rank does, and so that it is silent. Values are sent between nodes:
// new ones go to the end.
enum class ToldBy {
  kUnknown,
  kOperations,  // on its progress board
  kMarks,       // on its progress board, which holds nothing else
  kTorch,       // PyTorch's flight recorder, wait counters and stacks
  kTorchStore,  // PyTorch's store: it has come to the start, or has not
};
// "progress_board", "marks", "torch", "torch_store"; "unknown".
absl::string_view ToString(ToldBy told_by);

// The innermost frames of one stack: as many are read, sent and written.
inline constexpr size_t kStackFramesMax = 48;

// How the innermost frame of another thread begins: "thread Saver: write at saver.py:7".
inline constexpr absl::string_view kThreadFrame = "thread ";

// What is known of one rank at the time of the verdict.
struct RankReport {
  int rank = 0;
  std::string node;
  int pid = 0;
  std::string phase;
  std::optional<int64_t> step;
  absl::Duration silent_for;
  ToldBy told_by = ToldBy::kUnknown;
  std::string doing;
  Hold hold = Hold::kUnknown;  // its main thread
  std::vector<std::string>
      frames;  // of its main thread, innermost first; empty: `no_frames` says why
  std::string no_frames;
  // "function at file:line" of its Python, innermost first, of its main thread and then of others;
  // empty: not known.
  std::vector<std::string> python;
  friend bool operator==(const RankReport&, const RankReport&) = default;
};

// Ranks with one and the same stack.
struct StackGroup {
  std::vector<int> ranks;
  std::vector<std::string> frames;
};
// Equal stacks are one, the most common first. `which` of a rank's.
std::vector<StackGroup> MergeStacks(
    const std::vector<RankReport>& ranks,
    std::vector<std::string> RankReport::*which = &RankReport::frames);

// "all_reduce at distributed_c10d.py:4181 < step at train.py:26", what tells most; behind it, where
// there are others, "; its thread Saver in write at saver.py:7". May be empty.
std::string PythonInWords(const std::vector<std::string>& frames);

// "in its reduce phase of step 7", "between steps 7 and 8", "starting".
std::string PhaseInWords(Phase phase, const std::optional<int64_t>& step);

// "rank 3 on node2 (pid 12) is between steps, asleep, silent for 12 s".
std::string InWords(const RankReport& rank);
// The same, and where its Python is, if that is known.
std::string InWordsWithPython(const RankReport& rank);

// What follows from a verdict. `why_not_replaced`: where the node at fault was to be; else empty.
std::string ActionInWords(bool ends_workers, absl::string_view why_not_replaced = "");
// The same where `nodes` are replaced.
std::string ReplacementInWords(const std::vector<std::string>& nodes);

}  // namespace muster::hangs

#include "agent/watch/rank_stacks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "agent/watch/call_in_time.h"
#include "agent/watch/native_stacks.h"
#include "agent/watch/python_stack.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kStackTime = absl::Seconds(8);  // for all ranks together

constexpr absl::Duration kPythonTime = absl::Seconds(2);  // likewise

using PythonStacks = std::vector<std::vector<std::string>>;

// Empty where there is none.
PythonStacks ReadPythonStacks(const std::vector<pid_t>& pids) {
  PythonStacks stacks;
  for (const pid_t pid : pids) {
    absl::StatusOr<std::vector<std::string>> stack;
    if (pid != 0) stack = ReadPythonStack(pid);
    stacks.push_back(stack.ok() ? *std::move(stack) : std::vector<std::string>());
  }
  return stacks;
}

}  // namespace

// In time, since it reads files of the processes' programs.
void ReadPythonOfRanks(std::vector<verdict::RankReport>& ranks) {
  std::vector<pid_t> pids;
  for (const verdict::RankReport& rank : ranks) pids.push_back(rank.python.empty() ? rank.pid : 0);
  if (std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return pid == 0; })) return;
  std::optional<PythonStacks> stacks =
      CallInTime<PythonStacks>(kPythonTime, [pids] { return ReadPythonStacks(pids); });
  for (size_t i = 0; stacks && i < ranks.size(); ++i) {
    if (pids[i] != 0) ranks[i].python = std::move((*stacks)[i]);
  }
}

void ReadStacksOfRanks(std::vector<verdict::RankReport>& ranks) {
  ReadPythonOfRanks(ranks);
  const MonoTime deadline = MonoNow() + kStackTime;
  for (verdict::RankReport& rank : ranks) {
    if (rank.pid == 0) {
      rank.no_frames = "it has ended";
      continue;
    }
    if (MonoNow() >= deadline) {
      rank.no_frames = "no time was left";
      continue;
    }
    auto stacks = ReadStacks(rank.pid, deadline);
    if (stacks.ok()) {
      rank.frames = std::move(stacks->front().frames);
    } else {
      rank.no_frames = std::string(stacks.status().message());
    }
  }
}

}  // namespace muster::agent

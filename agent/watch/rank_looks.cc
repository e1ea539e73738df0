#include "agent/watch/rank_looks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agent/watch/native_stacks.h"
#include "agent/watch/python_stack.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::agent {
namespace {

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

// What has been read of the ranks so far, by a thread that may be stuck at one of them.
class ReadStacksOfRanks {
 public:
  explicit ReadStacksOfRanks(RankLooks::Ranks ranks) : ranks_(std::move(ranks)) {}

  void Read(MonoTime deadline) {
    for (size_t i = 0; i < num_ranks(); ++i) {
      const pid_t pid = pid_of(i);
      if (pid == 0) {
        Say(i, "it has ended");
        continue;
      }
      if (MonoNow() >= deadline) {
        Say(i, "no time was left to look at it");
        continue;
      }
      auto stacks = ReadStacks(pid, deadline);
      if (!stacks.ok()) {
        Say(i, std::string(stacks.status().message()));
        continue;
      }
      base::MutexLock lock(mu_);
      ranks_[i].frames = std::move(stacks->front().frames);
    }
  }
  // `why_not` of those that have not been read.
  RankLooks::Ranks Take(const std::string& why_not) {
    base::MutexLock lock(mu_);
    RankLooks::Ranks ranks = ranks_;
    for (hangs::RankReport& rank : ranks) {
      if (rank.frames.empty() && rank.no_frames.empty()) rank.no_frames = why_not;
    }
    return ranks;
  }

 private:
  size_t num_ranks() {
    base::MutexLock lock(mu_);
    return ranks_.size();
  }
  pid_t pid_of(size_t i) {
    base::MutexLock lock(mu_);
    return ranks_[i].pid;
  }
  void Say(size_t i, std::string why_not) {
    base::MutexLock lock(mu_);
    ranks_[i].no_frames = std::move(why_not);
  }

  base::Mutex mu_;
  RankLooks::Ranks ranks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

RankLooks::RankLooks(asio::io_context& loop, RankLookTimes times, GpuLookOptions gpu_options)
    : times_(times),
      gpu_options_(std::move(gpu_options)),
      gpus_(loop, Lane("gpu_looks")),
      files_(loop, Lane("rank_files")) {}

void RankLooks::Take(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then) {
  if (depth == LookDepth::kPython) return TakePython(depth, std::move(ranks), std::move(then));
  gpus_.Run<Ranks>(
      times_.gpus,
      [ranks, options = gpu_options_]() mutable {
        AddGpusOfRanks(ranks, options);
        return std::move(ranks);
      },
      [this, depth, ranks, then = std::move(then)](std::optional<Ranks> looked_at) mutable {
        TakePython(depth, looked_at ? *std::move(looked_at) : std::move(ranks), std::move(then));
      });
}

void RankLooks::TakePython(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then) {
  std::vector<pid_t> pids;
  for (const hangs::RankReport& rank : ranks) pids.push_back(rank.python.empty() ? rank.pid : 0);
  files_.Run<PythonStacks>(
      times_.python, [pids] { return ReadPythonStacks(pids); },
      [this, depth, pids, ranks = std::move(ranks),
       then = std::move(then)](std::optional<PythonStacks> stacks) mutable {
        for (size_t i = 0; stacks && i < ranks.size(); ++i) {
          if (pids[i] != 0) ranks[i].python = std::move((*stacks)[i]);
        }
        if (depth != LookDepth::kStacks) return then(std::move(ranks));
        TakeStacks(std::move(ranks), std::move(then));
      });
}

void RankLooks::TakeStacks(Ranks ranks, absl::AnyInvocable<void(Ranks)> then) {
  const auto reads = std::make_shared<ReadStacksOfRanks>(std::move(ranks));
  files_.Run<bool>(
      times_.stacks,
      [reads, deadline = MonoNow() + times_.stacks] {
        reads->Read(deadline);
        return true;
      },
      [reads, then = std::move(then)](std::optional<bool> are_all_read) mutable {
        then(reads->Take(are_all_read ? ""
                                      : "unavailable: its files do not answer, or no thread "
                                        "is free to read them"));
      });
}

}  // namespace muster::agent

#include "agent/watch/rank_looks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/watch/file_wait.h"
#include "agent/watch/native_stacks.h"
#include "agent/watch/python_stack.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::agent {
namespace {

void AddFileWaits(RankLooks::Ranks& ranks) {
  for (hangs::RankReport& rank : ranks) {
    const std::string wait = rank.pid == 0 ? "" : FileWaitOf(rank.pid);
    if (!wait.empty()) absl::StrAppend(&rank.doing, rank.doing.empty() ? "in " : "; in ", wait);
  }
}

// Fills in `python` of ranks that have none, as far as it can be read.
void ReadPythonStacks(RankLooks::Ranks& ranks) {
  for (hangs::RankReport& rank : ranks) {
    if (rank.pid == 0 || !rank.python.empty()) continue;
    auto stack = ReadPythonStack(rank.pid);
    if (stack.ok()) rank.python = *std::move(stack);
  }
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
  files_.Run<Ranks>(
      times_.python,
      [ranks]() mutable {
        ReadPythonStacks(ranks);
        return std::move(ranks);
      },
      [this, depth, ranks, then = std::move(then)](std::optional<Ranks> looked_at) mutable {
        TakeFiles(depth, looked_at ? *std::move(looked_at) : std::move(ranks), std::move(then));
      });
}

void RankLooks::TakeFiles(LookDepth depth, Ranks ranks, absl::AnyInvocable<void(Ranks)> then) {
  files_.Run<Ranks>(
      times_.files,
      [ranks]() mutable {
        AddFileWaits(ranks);
        return std::move(ranks);
      },
      [this, depth, ranks, then = std::move(then)](std::optional<Ranks> looked_at) mutable {
        if (looked_at) ranks = *std::move(looked_at);
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

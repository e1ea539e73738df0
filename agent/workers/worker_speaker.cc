#include "agent/workers/worker_speaker.h"

#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/machine/descendants.h"

namespace muster::agent {
namespace {

constexpr int kParentsMax = 256;

// The worker that the process is or is below; null if that is not known.
const RunningWorker* WorkerOf(WorkerRoster& roster, pid_t pid) {
  for (int i = 0; pid > 1 && i < kParentsMax; ++i) {
    for (const pid_t known : {pid, ::getsid(pid)}) {
      const RunningWorker* const worker = known > 1 ? roster.FindByPid(known) : nullptr;
      if (worker != nullptr) return worker;
    }
    const std::optional<ProcessInfo> process = ReadProcess(pid);
    pid = process ? process->parent : 0;
  }
  return nullptr;
}

}  // namespace

absl::Status CheckSpeaker(WorkerRoster& roster, LocalRank said, pid_t pid) {
  const int num_workers = roster.assignment().local_world_size;
  if (said.value() < 0 || said.value() >= num_workers) {
    return absl::PermissionDeniedError(absl::StrCat("pid ", pid, " says that it is of local rank ",
                                                    said.value(), "; this node has ", num_workers,
                                                    " workers, from 0"));
  }
  const RunningWorker* const worker = WorkerOf(roster, pid);
  if (worker == nullptr || worker->local_rank == said) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "pid ", pid, " says that it is of local rank ", said.value(), ", and is of local rank ",
      worker->local_rank.value(), " (pid ", worker->pid, "), by its parents or its session"));
}

}  // namespace muster::agent

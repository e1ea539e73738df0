// Starts one worker process: fork, what must happen before its program runs, and exec.
//
// Called by the guardian alone (guardian.cc), which is single-threaded: the parent-death signal is
// bound to the thread that forks, and a child of a process with threads could not allocate.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "proto/io/unique_fd.h"

namespace muster::agent {

enum class WorkerStart {
  kFresh,   // a program is executed
  kForked,  // by the warm process, where that can; afresh where not
  kWarm,    // the warm process itself (warm_parent.h): no worker, it is never said to be spawned
};

// One worker to be started.
struct WorkerCommand {
  uint64_t worker_id = 0;  // the caller's choice; unique among all workers of this agent
  // argv[0] is looked up in `environment`'s PATH unless it has a slash.
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value, complete
  // Empty: the guardian's, which is the agent's when it forked it.
  std::string working_directory;
  // Descriptors for 0, 1 and 2; -1 inherits the agent's. The caller keeps ownership and may close
  // them after Spawn.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> cpus;  // affinity; empty: inherited
  WorkerStart start = WorkerStart::kFresh;
  int control_fd = -1;  // descriptor 3 of a warm process; -1: it has none. Never on the wire.
};

// How a worker ended, from waitpid. `exit_code` means something only if `signal` is 0.
struct WorkerExit {
  uint64_t worker_id = 0;
  int exit_code = 0;
  int signal = 0;
  bool has_core = false;  // the kernel has written one, or given it to a program
};

struct StartedWorker {
  pid_t pid = -1;
  UniqueFd pidfd;        // empty if there was no descriptor left for it
  UniqueFd exec_result;  // readable once the program runs or could not; see ReadExecResult
};

// The step that failed ("fork", "execve", …) and its errno.
struct StartError {
  int error_number = 0;
  std::string step;
};

// Forks a worker that leads a session and process group of its own, dies with the caller, has the
// streams, CPUs and directory of `command`, no other descriptor, no signal blocked and each at its
// default: what muster was started ignoring (SIGINT in a shell's background, SIGHUP under nohup) is
// between the caller and muster, and a worker that ignored it could not be stopped by it. Does not
// wait for it: what goes wrong in the child comes through `exec_result`. `open_files` is its limit.
// The descriptors of `command` are above 2.
// `group` is the file by which it moves into the job's control group; -1: there is none.
std::variant<StartedWorker, StartError> StartWorker(const WorkerCommand& command,
                                                    const rlimit& open_files, int group);

struct ExecPending {};
struct ExecDone {};
// Does not block.
std::variant<ExecPending, ExecDone, StartError> ReadExecResult(int exec_result);

}  // namespace muster::agent

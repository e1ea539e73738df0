// What the scheduler that started this process says of its job: environment and host files ->
// options of `muster run`, each with the variable that it came from.
//
// The variables are rows of scheduler_table.cc; which of the options count beside those that were
// given is placement.h's.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"

namespace muster::launcher {

// What the answer may depend on.
struct Surroundings {
  EnvironmentMap environment;
  std::string host_name;  // of this machine, to find it in a list of hosts
  // The text of a file, empty if it cannot be read: a host file, or /etc/hosts.
  std::function<std::string(const std::string& path)> read_file;
  // IsStepAlive of step_daemon.h; empty: not known.
  std::function<std::optional<bool>(int64_t job, int64_t step)> is_step_alive = {};
};

// One option of `muster run` as the scheduler, or another launcher's file, would give it.
struct TakenOption {
  std::string option;       // "nnodes"
  std::string value;        // as on a command line
  std::string source;       // "SLURM_STEP_NUM_NODES", "--config_file=a.yaml: line 3: num_machines"
  bool is_of_file = false;  // a line of a file says it
  friend bool operator==(const TakenOption&, const TakenOption&) = default;
};

// Which of the tasks that the scheduler has started this process is.
struct TaskFacts {
  int local = 0;  // of those on this node
  int num_local = 1;
  int num_all = 0;  // 0: not known
  // Why nobody knows which of its node's tasks this is; ok: it is known.
  absl::Status unnumbered;
};

struct SchedulerFindings {
  std::string scheduler;  // "Slurm"; empty: none, and nothing else is set
  std::string job;        // "Slurm job 17, step 0", for people
  // nnodes, node_rank, rdzv_endpoint, rdzv_id, nproc_per_node, shutdown_timeout; those that are
  // known.
  std::vector<TakenOption> options;
  std::vector<std::string> nodes;  // names, in the scheduler's order; empty: not known
  std::string node_name;           // of this node among them; empty: not known
  int num_nodes = 0;               // 0: the scheduler does not say
  TaskFacts tasks;
  int num_gpus_hidden = 0;  // GPUs of this node that were bound to other tasks
  int cpus_per_task = 0;    // that were asked for; 0: not known
  int kill_wait = 0;        // seconds from Slurm's SIGTERM to its SIGKILL; 0: another scheduler
  bool is_slurm = false;
  int64_t end_time = 0;  // when its time is up, seconds since 1970; 0: not known
  // Why the nodes cannot be brought together without options; ok: they can. Beside no scheduler:
  // its variables are left over.
  absl::Status unplaced;
  std::vector<std::string> notes;  // worth a line each

  // nullptr if the scheduler does not give it.
  const TakenOption* Find(const std::string& option) const;
};

// The innermost scheduler of the table whose variables are there. In a worker of a job of ours
// there is none: what is started there is not what the scheduler started.
//
// Errors: kInvalidArgument naming the variable, its value and what was expected.
absl::StatusOr<SchedulerFindings> FindScheduler(const Surroundings& surroundings);

// The port of a job's rendezvous: jobs and steps side by side get different ones, out of the range
// that kernels hand out by themselves.
int PortOfSlurmStep(int64_t job, int64_t step);
int PortOfJob(const std::string& run_id);

}  // namespace muster::launcher

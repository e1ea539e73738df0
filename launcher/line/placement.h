// Which of a scheduler's settings count beside the options that were given, and what follows from
// them for this process.
//
// Options that were given win, one by one. Who names a meeting place (--rdzv_endpoint,
// --master_addr) places the nodes, as in a job script for torchrun: then the scheduler only fills
// in how many there are, which this is and, of several tasks, which is the agent; where nobody
// knows the node's rank the back end is c10d. --standalone and --nnodes=1 make each process a job
// of its own, with a warning where there are several.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {

struct Placement {
  // "Slurm job 17, step 0: nnodes=4 (SLURM_STEP_NUM_NODES), ..."; empty: nothing was taken.
  std::string start_line;
  std::string place_from;  // what named the endpoint, "SLURM_STEP_NODELIST"; empty: the user did
  std::vector<std::string> expected_nodes;  // by name; empty: not known
  std::string node_name;                    // of this node; empty: its host name
  TaskFacts tasks;                          // the first of a node is the agent
  std::string tasks_of;         // the job of those tasks, for task_gate.h; empty: not known
  bool is_slurm = false;        // whose habits with signals are its own
  bool is_first = true;         // of the nodes: it says what was taken
  int num_cpus = 0;             // that the agent's tasks were given on this node; 0: not known
  int64_t end_time = 0;         // when the scheduler ends the job, seconds since 1970; 0: not known
  bool shares_console = false;  // the lines of several nodes appear in one place
};

// How long a scheduler leaves a job that it ends at `end_time`; in words with whole minutes above
// one.
absl::Duration LeftUntil(int64_t end_time, absl::Time now);
std::string TimeLeftInWords(int64_t end_time, absl::Time now);

// Adds the settings that count to `line`, before its values are read.
//
// Errors: kInvalidArgument: the nodes cannot be brought together without an option, or the options
// want more nodes than there are, or the agent of several tasks would not see their GPUs.
absl::StatusOr<Placement> ApplyScheduler(const SchedulerFindings& found,
                                         command_line::CommandLine& line);

}  // namespace muster::launcher

// The table of what schedulers tell the processes that they start: one row per variable, with what
// it means and where that is written. A new scheduler is a new block of rows in scheduler_table.cc.
//
// Pure values.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace muster::launcher {

// What a variable says. How settings are made of it: scheduler.cc.
enum class Fact {
  kJobId,
  kArrayJobId,   // of the array that the job is an element of
  kArrayTaskId,  // which element
  kStepId,       // one job starts several things, one after the other or side by side
  kRestarts,     // how often the job was put back into the queue
  kNumNodes,
  kNodeList,    // Slurm's node list
  kHosts,       // names of hosts, one per slot
  kHostFile,    // a file with those
  kHostCounts,  // "h1 8 h2 8"
  kNodeRank,    // place of this node in the list, from 0
  kNodeName,
  kNumTasks,
  kTask,          // place of this task among all
  kLocalTask,     // and among those of its node
  kLocalTasks,    // how many tasks this node has
  kTasksPerNode,  // "2(x3),1", by node
  kGpusOnNode,
  kCpusPerTask,
  kGpuBinding,  // set: each task was given GPUs of its own
  kStarterUri,  // where the program that started the tasks listens
  kPodName,     // ends with the node rank: "train-3"
  kJobIndex,    // of the jobs of one set, whose pods are "train-JOB-RANK" then
  kEndTime,     // of the job, seconds since 1970
};

struct FactRow {
  Fact fact;
  const char* variable;
};

struct SchedulerRow {
  const char* name;     // for people
  const char* id;       // begins the run id
  const char* command;  // what starts muster on every node; empty: the scheduler does it itself
  const char* source;   // where the variables are described
  // This scheduler started us if all of these are set and not empty.
  absl::Span<const char* const> signs;
  absl::Span<const FactRow> facts;  // of several rows for one fact the first that is set counts
};

// The innermost first: mpirun runs inside a job of Slurm, LSF or PBS, not the other way round, and
// so does Flux, which may set PALS's variables itself.
absl::Span<const SchedulerRow> SchedulerTable();

}  // namespace muster::launcher

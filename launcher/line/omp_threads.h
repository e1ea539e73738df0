// OMP_NUM_THREADS of this node's workers.
//
// torchrun gives 1 to each of several, which no machine is overloaded by. A scheduler that counts
// the CPUs of this node's tasks says better, and --omp_threads says it for this job.
//
// Threads: pure.
// Source:  torch 2.15, torch/distributed/run.py (config_from_args).
#pragma once

#include <string>

#include "proto/spec/job_spec.h"

namespace muster::launcher {

struct NodeCpus {
  int num_cpus = 1;
  bool are_counted = false;  // a scheduler has given this node's tasks these, and no others
};

struct ThreadDecision {
  int threads = 0;   // 0: the variable is left as it is
  std::string note;  // what a user should know of it; empty: nothing
};

// `is_inherited`: the user has set the variable, which only a number or `auto` that was asked for
// overrules.
ThreadDecision DecideOmpThreads(const OmpThreads& asked, int num_workers, const NodeCpus& cpus,
                                bool is_inherited);

}  // namespace muster::launcher

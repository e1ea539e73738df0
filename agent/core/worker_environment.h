// Assignment -> the environment contract of each local worker. Called by agent/local_round.cc; the
// variables themselves are written by proto/spec/worker_env.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/base/membership.h"
#include "proto/spec/worker_env.h"

namespace muster::agent {

// `common`, which has what the agent knows besides the assignment and is the same for all of them,
// with the place of each. A master that it has stays: a job on one node may ask its workers to see
// one (JobSpec::worker_master_*). TF_CONFIG is set only if the assignment lists every worker's
// port.
//
// Shapes: [assignment.local_world_size], by local rank.
std::vector<WorkerEnv> MakeWorkerEnvs(const Assignment& assignment, WorkerEnv common);

// "SIGTERM,SIGUSR1"
std::string NamesOfSignals(const std::vector<int>& signals);

// `command` (argv) for the worker of `local_rank`: in all but the program's own name, ${local_rank}
// and $local_rank become the number and $$ becomes $, as torchrun has it; any other $ stays.
//
// Source: torch 2.15, torch/distributed/elastic/utils/api.py `macros` (Python's string.Template).
std::vector<std::string> WorkerArguments(const std::vector<std::string>& command,
                                         LocalRank local_rank);

}  // namespace muster::agent

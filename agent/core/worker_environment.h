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

// What the agent knows besides the assignment.
struct WorkerEnvContext {
  std::string run_id;
  std::string role = "default";
  int max_restarts = 0;
  std::vector<int> signals_to_handle;        // by the launcher
  std::vector<std::string> error_files;      // [local_world_size]; empty: none
  std::vector<std::string> visible_devices;  // [local_world_size]; empty: inherited
  std::vector<std::string> boards;           // [local_world_size]; empty: none
  std::vector<std::string> torch_servers;    // [local_world_size]; empty: none
  std::string python_folder;                 // of the hook of PyTorch's programs; empty: none
  std::string torch_notes;                   // Unix socket that it tells; empty: none
  bool virtual_local_rank = false;
  std::string agent_socket;
  std::string timer_file;  // pipe of PyTorch's file timers; empty: none
  // What a job on one node asked its workers to see (JobSpec::worker_master_*); empty and 0: as
  // assigned.
  std::string master_addr;
  int master_port = 0;
};

// TF_CONFIG is set only if the assignment lists every worker's port.
//
// Shapes: [assignment.local_world_size], by local rank.
// Errors: none; vectors of `context` that are too short leave the rest empty.
std::vector<WorkerEnv> MakeWorkerEnvs(const Assignment& assignment,
                                      const WorkerEnvContext& context);

// `command` (argv) for the worker of `local_rank`: in all but the program's own name, ${local_rank}
// and $local_rank become the number and $$ becomes $, as torchrun has it; any other $ stays.
//
// Source: torch 2.15, torch/distributed/elastic/utils/api.py `macros` (Python's string.Template).
std::vector<std::string> WorkerArguments(const std::vector<std::string>& command,
                                         LocalRank local_rank);

}  // namespace muster::agent

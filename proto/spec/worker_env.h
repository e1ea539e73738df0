// The environment of one worker: the only home of the contract between agent and training program.
//
// Written by agent/core from an Assignment; read by `Runtime::FromEnvironment` of worker_runtime.
// Source: torch 2.15, torch/distributed/elastic/agent/server/local_elastic_agent.py (torchrun's
// variables); TensorFlow's documentation of TF_CONFIG; ours are MUSTER_* (proto/README.md).
//
// Pure values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"
#include "proto/base/ids.h"

namespace muster {

struct WorkerEnv {
  Rank rank;
  LocalRank local_rank;
  int world_size = 1;
  int local_world_size = 1;
  NodeRank node_rank;
  int num_nodes = 1;
  std::string role_name = "default";
  int role_rank = 0;
  int role_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
  std::string error_file;
  std::string timer_file;           // pipe of PyTorch's file timers; empty: none
  std::string signals_to_handle;    // of the launcher, "SIGTERM,SIGINT"
  bool virtual_local_rank = false;  // LOCAL_RANK=0 for every worker, one visible device
  // CUDA_VISIBLE_DEVICES of this worker. Empty: as inherited. A decoded value is what the worker
  // sees, whether or not the launcher set it.
  std::string visible_devices;
  std::string tf_config;  // JSON; empty: not set (too many workers for one variable)

  // What the runtime needs.
  Instance instance;
  Round round;
  std::string agent_socket;  // Unix socket of the agent; empty: the program runs alone
  std::string board;         // file of the progress board; empty: none
  std::string torch_server;  // Unix socket for PyTorch's worker server; empty: none
  // The hook of PyTorch's programs (agent/watch/torch_hook.py), and the Unix socket that it tells
  // where groups meet. Not read back; empty: there is no hook.
  std::string python_folder;
  std::string torch_notes;
  friend bool operator==(const WorkerEnv&, const WorkerEnv&) = default;
};

// The variables to set over `inherited`: torchrun's set but for OMP_NUM_THREADS (which the launcher
// decides for the node), MUSTER_*, TF_CONFIG, TRACEPARENT (one trace for the job, whose parent span
// is the round); with a python_folder PYTHONPATH, with a torch_server TORCH_FR_BUFFER_SIZE.
// Variables with an inherited value that wins (TORCH_NCCL_ASYNC_ERROR_HANDLING, TF_CONFIG,
// TRACEPARENT, TORCH_FR_BUFFER_SIZE) are absent from the result then; HIP_VISIBLE_DEVICES follows
// CUDA's if it is inherited. The caller drops what IsWithheldFromWorkers names from `inherited`
// itself.
EnvironmentMap EncodeWorkerEnv(const WorkerEnv& env, const EnvironmentMap& inherited);

// The same without torchrun's variables and TF_CONFIG, for the worker of a job of one: a program
// that tells by them whether it is distributed finds that it is not.
//
// Source: accelerate 1.15, utils/launch.py (prepare_simple_launcher_cmd_env).
EnvironmentMap EncodeLoneWorkerEnv(const WorkerEnv& env, const EnvironmentMap& inherited);

// The inverse of both, for the runtime. Without RANK and WORLD_SIZE the program is one rank of one;
// without MUSTER_* it was started by torchrun or by hand, and `agent_socket` stays empty.
//
// Errors: kInvalidArgument naming the variable, if one is missing, no number, or out of range.
absl::StatusOr<WorkerEnv> DecodeWorkerEnv(const EnvironmentMap& environment);

// TF_CONFIG for one worker: every worker's host:port by rank (IPv6 hosts bracketed), and its own
// index. Empty without addresses, and when the JSON would not fit into one environment variable
// (128 KiB on Linux).
std::string MakeTfConfig(const std::vector<std::string>& worker_addresses, Rank rank);

// A node check (--node_check) has this one besides what workers inherit: no round and no other node
// is there yet.
inline constexpr char kNodeCheckVariable[] = "MUSTER_NODE_CHECK";

// Names that must not reach a worker: the secret, and what an outer job said of its own workers
// (a MUSTER_* variable of a job inside a job). Other MUSTER_* variables are the user's own
// settings.
bool IsWithheldFromWorkers(const std::string& name);

}  // namespace muster

// What an agent is told by the launcher (launcher/node/node_setup.h).
//
// Plain values.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/core/agent_core.h"
#include "agent/network/round_judgement.h"
#include "agent/worker_watch.h"
#include "proto/io/unique_fd.h"
#include "proto/spec/job_spec.h"
#include "proto/spec/worker_env.h"

namespace muster::agent {

struct AgentOptions {
  JobSpec spec;  // validated
  NodeDescription node;
  std::vector<std::string> worker_command;   // argv of every worker
  EnvironmentMap environment;                // what workers inherit
  std::vector<std::string> visible_devices;  // by local rank; empty: untouched
  std::vector<std::vector<int>> cpus;        // by local rank; empty: not bound
  std::string run_directory;                 // of logs and error files
  // It and its parent are removed at the end if nothing was written.
  bool run_directory_is_temporary = false;
  std::string runtime_directory;  // 0700, for the workers' socket
  // Shared by the copies of these options: see leftovers.h. The job's end unlocks it.
  std::shared_ptr<UniqueFd> runtime_lock;
  std::string server;  // for messages
  bool hosts_server = false;
  WatchOptions watch;
  NodeFacts facts;  // what must be alike on all nodes; empty: nothing is compared
  // The sender may have signalled every process below us too, as Slurm does with
  // proctrack/linuxproc: workers shall get it once.
  bool signals_may_reach_workers = false;
};

}  // namespace muster::agent

// A round on this node: the check before the node asks for it, its ports, its part in PyTorch's
// store, its progress boards, and how its workers come to run: first log files, then a look at the
// network, then the hook, then the workers themselves. A stop that comes meanwhile cancels all of
// it.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent_options.h"
#include "agent/console/log_pump.h"
#include "agent/core/agent_events.h"
#include "agent/core/worker_environment.h"
#include "agent/guardian/guardian.h"
#include "agent/machine/worker_ports.h"
#include "agent/network/round_network.h"
#include "agent/process/board_memory.h"
#include "agent/status_line.h"
#include "agent/torch_store/store_host.h"
#include "agent/user_programs.h"
#include "agent/warm_start.h"
#include "agent/watch/hang_watch.h"
#include "agent/watch/torch_programs.h"
#include "agent/workers/worker_roster.h"
#include "asio/io_context.hpp"

namespace muster::agent {

class LocalRound {
 public:
  class Shell {
   public:
    virtual ~Shell() = default;
    virtual void Feed(Event event) = 0;
    // A worker that was kept, or was to be started, cannot take part in the round.
    virtual void OnCannotStart(LocalRank local_rank, const absl::Status& why) = 0;
    // The others have been asked for, and this one was kept: `environment` is its place.
    virtual void OnPlaceOfKept(LocalRank local_rank, std::vector<std::string> environment) = 0;
  };
  // What it acts with. All of it but the guardian outlives this; the constructor uses the options
  // alone.
  struct Parts {
    const AgentOptions& options;
    WorkerRoster& roster;
    LogPump& pump;
    StatusLine& status;
    HangWatch& hang_watch;
    GuardianClient& guardian;
    Shell& shell;
  };

  // `ask` asks the store of the rendezvous.
  LocalRound(asio::io_context& loop, Parts parts, RoundNetwork::Ask ask);

  // Prepares the hook for PyTorch's programs, for the life of the agent. Without it workers run all
  // the same, and nothing is known of them.
  void PrepareTorchPrograms();
  // CheckEnded follows.
  void RunCheck();
  // Ends the store of the last round. PortsReserved, or PortsFailed.
  Event ReservePorts();
  // Starts the workers of the roster's round but those that were kept.
  void Start();
  // Its workers are being started.
  bool is_starting() const { return is_starting_; }
  // The round is being stopped: nothing of it is started, watched or told any more.
  void Leave();
  // The guardian is gone: no worker will start.
  void Abandon();

  StoreHost& torch_store() { return torch_store_; }
  const RoundNetwork& network() const { return network_; }
  UserPrograms& programs() { return programs_; }
  WarmStart& warm() { return warm_; }

 private:
  const Assignment& assignment() const { return parts_.roster.assignment(); }
  void MakeBoards();
  // The environments of all workers, which lack what each has for itself.
  std::vector<WorkerEnv> MakeEnvs() const;
  // Once the log files are open: the network, then the hook.
  void Prepare(std::vector<WorkerStreams> streams);
  void RunHook(std::vector<WorkerStreams> streams);
  // If `streams` is an error, it says of each worker why it was not started.
  void SpawnWorkers(absl::StatusOr<std::vector<WorkerStreams>> streams);
  void Spawn(const WorkerEnv& env, const WorkerStreams& streams);
  // Adds what each worker is watched by: its board, and PyTorch's server. Returns the servers.
  std::vector<std::string> AddWatched(std::vector<WorkerEnv>& envs) const;
  // The hang watch starts after the workers: it looks at the node's interfaces, and lets go of the
  // boards of the last round.
  void StartHangWatch(std::vector<std::string> torch_servers);
  std::vector<std::string> EnvironmentOfWorker(const WorkerEnv& env) const;
  // Makes the question who has not come to PyTorch's store; empty where another node serves it.
  StoreQuestion MakeStoreQuestion();
  void CancelStart();

  const Parts parts_;
  RoundNetwork network_;  // looked at before workers start
  UserPrograms programs_;
  WarmStart warm_;  // may fork them
  TorchPrograms torch_programs_;
  WorkerPorts ports_;
  StoreHost torch_store_;
  std::vector<std::optional<BoardMemory>> boards_;  // by local rank
  bool is_starting_ = false;  // the log files of the round are being opened, or its hook runs
};

}  // namespace muster::agent

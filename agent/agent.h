// The shell of one node's agent: performs what AgentCore decides, and turns what happens into its
// events.
//
// Agent is who of its parts hears of what: each owns its own state, and Agent has none besides. One
// event loop, loop thread only. The launcher creates it (launcher/node/node_run.cc) and is
// told the outcome by `on_finished`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_ending.h"
#include "agent/agent_options.h"
#include "agent/console/log_pump.h"
#include "agent/core_runner.h"
#include "agent/guardian/guardian.h"
#include "agent/local_round.h"
#include "agent/sight/agent_sight.h"
#include "agent/status_line.h"
#include "agent/watch/hang_watch.h"
#include "agent/worker_service.h"
#include "agent/worker_watch.h"
#include "agent/workers/worker_exits.h"
#include "agent/workers/worker_roster.h"
#include "agent/workers/worker_signals.h"
#include "asio/io_context.hpp"
#include "proto/base/endpoint.h"
#include "proto/spec/job_spec.h"
#include "proto/spec/worker_env.h"
#include "rendezvous/link/rendezvous_link.h"

namespace muster::agent {

class Agent : private CoreRunner::Shell, private LocalRound::Shell {
 public:
  // `link` is opened by Start. `on_finished` is called once, from the loop, after the link has been
  // closed.
  Agent(asio::io_context& loop, AgentOptions options, GuardianHandle guardian,
        std::unique_ptr<rendezvous::RendezvousLink> link,
        std::function<void(JobOutcome)> on_finished);

  // Errors: kInternal if the workers' socket cannot be made.
  absl::Status Start();
  // Serves metrics at `at`, to those who show `token`; to everyone where it is empty. The port.
  //
  // Errors: as HttpDoor::Listen.
  absl::StatusOr<int> ServeMetrics(const Endpoint& at, std::string token) {
    return sight_.metrics().Listen(at, std::move(token));
  }
  // A signal that the launcher got.
  void OnSignal(int signal);
  // The job's time will be up after a grace from now: workers that obey stops leave after one step.
  void OnTimeRunsOut(const std::string& reason);
  // Our terminal has another size; workers that draw on it are told.
  void OnWindowSize();
  // Around a stop of this process by Ctrl-Z.
  void LeaveTerminal() { pump_.LeaveTerminal(); }
  void ReturnToTerminal();
  // This node ends by its own decision.
  bool IsLeaving() const { return core().is_leaving(); }
  // Writes what consoles and log files have not taken yet, for a few seconds at most. Blocks: for
  // the end of the program, when the loop has ended.
  void FlushOutput();
  // Prints one line of ours between the workers' lines.
  void PrintLine(const std::string& line);
  // Pairs of nodes of the last round that do not reach each other, one sentence each.
  const std::vector<std::string>& network_faults() const { return round_.network().faults(); }

 private:
  // --- CoreRunner::Shell
  void OnEffect(const Effect& effect) override;
  void OnStepped() override { KeepDiary(); }
  void OnRest() override { worker_service_.OnLease(); }
  void OnDeadline() override { guardian_.Wake(); }  // while it is stopped, no exits are heard of

  // --- LocalRound::Shell
  void Feed(Event event) override { runner_.Feed(std::move(event)); }
  void OnCannotStart(LocalRank local_rank, const absl::Status& why) override;
  void OnPlaceOfKept(LocalRank local_rank, std::vector<std::string> environment) override;

  const AgentCore& core() const { return runner_.core(); }
  const Assignment& assignment() const { return roster_.assignment(); }
  void Perform(const SendReport& effect);
  void Perform(const ReservePorts& effect);
  void Perform(const RunCheck& effect);
  void Perform(const EndCheck& effect);
  void Perform(const StartWorkers& effect);
  void Perform(const SignalWorkers& effect);
  void Perform(const PrepareSignal& effect);
  void Perform(const EndWorker& effect);
  void Perform(const NoteFailure& effect) { sight_.diary().NoteFailure(effect.failure); }
  void Perform(const TellStop& effect);
  void Perform(const TellRoundOver& effect);
  void Perform(const SweepDescendants& effect);
  void Perform(const AwaitDescendants& effect);
  void Perform(const NameDescendants& effect);
  void Perform(const ShowStatus& effect);
  void Perform(const Announce& effect);
  void Perform(const Finish& effect);

  rendezvous::LinkListener MakeLinkListener();
  void Forward(StoreRequest request);
  GuardianListener MakeGuardianListener();
  void OnSpawned(uint64_t worker_id, int pid, bool is_forked);
  // Its process, new or kept, works in the round from now on.
  void OnRuns(const RunningWorker& worker, int status::WorkerStarts::*how);
  void OnSpawnFailed(uint64_t worker_id, const absl::Status& status);
  void OnExited(const WorkerExit& exit);
  HangWatchOptions MakeHangWatchOptions();
  WatchListener MakeWatchListener();
  void OnExpired(int pid, std::string why);
  void OnStuck(int pid, const std::string& why);
  void OnGuardianLost(const std::string& reason);
  // Time may be spent on something else than before.
  void KeepDiary() { sight_.diary().TurnTo(core().phase(), round_.is_starting()); }
  void SettleRunDirectory(std::function<void()> settled);

  // Constant after construction.
  AgentOptions options_;

  // Loop thread only. Destroyed in reverse: the guardian goes first and takes the workers with it.
  CoreRunner runner_;
  StatusLine status_;
  LogPump pump_;
  std::unique_ptr<rendezvous::RendezvousLink> link_;
  AgentEnding ending_;
  WorkerService worker_service_;
  WorkerRoster roster_;
  WorkerSignals signals_;
  WorkerWatch watch_;
  HangWatch hang_watch_;
  AgentSight sight_;
  WorkerExits exits_;
  LocalRound round_;
  GuardianClient guardian_;
};

}  // namespace muster::agent

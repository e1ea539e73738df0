// Sends signals to the workers of a node, through the guardian, and notes them as ours.
//
// The sender of a signal that we got may have signalled every process below us too, within a
// moment: then workers get it from us only if they do not have it.
//
// One event loop, loop thread only.
#pragma once

#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "agent/core/agent_events.h"
#include "agent/guardian/guardian.h"
#include "agent/workers/worker_roster.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"

namespace muster::agent {

class WorkerSignals {
 public:
  // `may_reach_workers`: signals that we get may have been sent to them too. `guardian` may go
  // before this, whose destructor does not use it.
  WorkerSignals(asio::io_context& loop, WorkerRoster& roster, GuardianClient& guardian,
                bool may_reach_workers);

  // What waits is sent to those who are there; what we got before is nothing to those who come.
  void StartRound();
  // What we got, and the workers will get from us unless they have it.
  void NoteReceived(int signal);
  // The signal is ours from now on, and is sent later.
  void Prepare(const PrepareSignal& effect);
  void Send(const SignalWorkers& effect);
  // Their terminals may have another size.
  void TellWindowSize();
  // SIGKILL to the group of one worker; `why` is for its failure. Null: there is none.
  void End(RunningWorker* worker, const std::string& why);

 private:
  void SendNow(const SignalWorkers& effect);
  void SendUnlessTheyHaveIt(const SignalWorkers& effect);
  void SendSpreading();

  WorkerRoster& roster_;
  GuardianClient& guardian_;
  const bool may_reach_workers_;
  absl::btree_set<int> received_;         // in this round, and not sent to the workers since
  std::vector<SignalWorkers> spreading_;  // in the order of their coming, until the timer
  asio::steady_timer timer_;
};

}  // namespace muster::agent

// Decides what one node does: when to join, start, stop and restart its local worker group, and
// when to end. Pure: same state, event and time give the same effects.
//
// What it knows lies in values of their own, each with its own steps and tests; this is what an
// event means to all of them.
//
// The walk of one value: a Directive{RunRound} arrives as DirectiveArrived -> Effect
// StartWorkers{Assignment} -> the shell (agent/local_round.cc) spawns through the guardian ->
// WorkerExited comes back -> the state of the group is reported to the rendezvous (SendReport), a
// failure once it is known who has brought it about (kept_back.h) -> the next directive says
// restart, or end.
//
// Threads: compatible; one caller at a time (Agent calls it on its loop thread).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/agent_events.h"
#include "agent/core/agent_phase.h"
#include "agent/core/agreed_stop.h"
#include "agent/core/kept_back.h"
#include "agent/core/node_check.h"
#include "agent/core/node_ending.h"
#include "agent/core/node_standing.h"
#include "agent/core/server_contact.h"
#include "agent/core/stop_ladder.h"
#include "agent/core/turn.h"
#include "agent/core/worker_group.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class AgentCore {
 public:
  explicit AgentCore(AgentCoreOptions options);

  // Applies `event` at `now` and returns what the shell must do, in this order. `now` must not go
  // back.
  std::vector<Effect> Step(const Event& event, MonoTime now);

  // Earliest instant at which Step(Tick{}, t) would return something; InfiniteFuture() if none.
  MonoTime NextDeadline() const;

  // Whether what this node's workers publish may go out: the server can be heard, knows the job,
  // and this node's lease holds, by a count of its own that ends before the server's: from when the
  // newest report that was answered had been made, and with the margin taken off.
  //
  // Errors: kUnavailable: "not now: ...".
  absl::Status MayPublish(MonoTime now) const;
  ServerTerm term() const { return server_.term(); }  // the newest that has been heard of

  NodePhase phase() const { return phase_; }
  Round round() const { return standing_.round(); }
  const NodeCheck& check() const { return check_; }
  bool is_leaving() const { return ending_.is_leaving(); }
  // A1: workers of two rounds never run together: one of an earlier round awaits the next. A2:
  // nothing is started while stopping. A3: outside a round a worker awaits the next; after Finish
  // none lives, but for the unkillable. A4: a report's round never falls. Empty if all hold.
  std::string CheckInvariants() const;

 private:
  void On(const Started&, Turn& turn);
  void On(const PortsReserved& event, Turn& turn);
  void On(const PortsFailed& event, Turn& turn);
  void On(const CheckEnded& event, Turn& turn);
  void On(const DirectiveArrived& event, Turn& turn);
  void On(const LinkChanged& event, Turn& turn);
  void On(const LeaseTold& event, Turn& turn);
  void On(const WorkerSpawned& event, Turn& turn);
  void On(const WorkerExited& event, Turn& turn);
  void On(const LastCallsChanged& event, Turn& turn);
  void On(const WorkerPromised& event, Turn& turn);
  void On(const WorkerGreeted& event, Turn& turn);
  void On(const DescendantsGone&, Turn& turn);
  void On(const DescendantsNamed& event, Turn& turn);
  void On(const SignalReceived& event, Turn& turn);
  void On(const TimeRunsOut& event, Turn& turn);
  void On(const GuardianLost& event, Turn& turn);
  void On(const RoundForbidden& event, Turn& turn);
  void On(const PairsFailed& event, Turn& turn);
  void On(const Tick&, Turn& turn);

  void Obey(const Wait& wait, Turn& turn);
  void Obey(const RunRound& run, Turn& turn);
  void Obey(const StopRound& stop, Turn& turn);
  void Obey(const StopAt& at, Turn& turn);
  void Obey(const EndJob& end, Turn& turn);
  void Obey(const Refuse& refuse, Turn& turn);

  // Acts on what need not wait for what ranks called last.
  void TakeKept(Turn& turn);
  void Take(const WorkerExited& exit, Turn& turn);
  void Enter(NodePhase phase);
  void JoinAgain(Turn& turn);
  // Reserves ports, or has the node checked first.
  void BeginJoin(Turn& turn);
  // False: every worker has ended, so the node may stay.
  bool DepartIfUnkillable(Turn& turn);
  // `kept_for`: why another round is expected, for those who go on in it; empty: none is.
  void BeginStop(After after, int first_signal, absl::Duration grace, Turn& turn,
                 const std::string& kept_for = "");
  void ClimbLadder(Turn& turn);
  void GroundReached(Turn& turn);
  // No round follows for this node: stops workers that await one, up the stop ladder. False: there
  // are none.
  bool EndSurvivors(Turn& turn);
  // Signals these, and climbs the stop ladder for them.
  void EndParked(const std::vector<LocalRank>& ended, Turn& turn);
  // False if it is no use: workers that do not obey, or no server to be heard.
  bool AskForStopStep(const Departure& departure, Turn& turn);
  // The node ends by its own decision: stops its workers first, if there are any.
  void Depart(Departure departure, Turn& turn);
  void EndWith(JobOutcome outcome, Turn& turn);
  void Conclude(JobOutcome outcome, Turn& turn);
  void GiveUpOnServer(Turn& turn);
  // The server that knew the outcome is gone: what it said last is the end.
  void EndAsTold(const std::string& why_no_more, Turn& turn);
  void BeginAnew(const std::string& why, Turn& turn);
  void Report(Turn& turn);
  AgentPhase ReportedPhase() const;
  MonoTime ServerDeadline() const;
  // The next time at which a worker that was kept must have come to the round that runs.
  MonoTime HelloDeadline() const;
  // A report is due only where there is something to say.
  MonoTime ReportDeadline() const;
  // When a check that has failed runs again.
  MonoTime CheckDeadline() const;
  // When a wish for a stop step is given up, as long as it is all that this node's end depends on.
  MonoTime WishDeadline() const;

  AgentCoreOptions options_;  // constant after construction
  NodePhase phase_ = NodePhase::kIdle;
  ServerContact server_;
  NodeStanding standing_;
  WorkerGroup workers_;
  NodeCheck check_;
  StopLadder ladder_;
  KeptBack kept_back_;
  AgreedStop stop_;
  NodeEnding ending_;
  std::string shown_status_;
};

}  // namespace muster::agent

// What happens to a node (events) and what its shell must do (effects), as AgentCore takes and
// returns them.
//
// Pure values.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "proto/base/stop_state.h"
#include "rendezvous/hangs/evidence/last_calls.h"

namespace muster::agent {

struct Started {};
// Answer to ReservePorts.
struct PortsReserved {
  int store_port = 0;
  std::vector<int> worker_ports;
};
struct PortsFailed {
  absl::Status status;
};
// Answer to RunCheck. `failure` is empty if the check has passed; else how it ended, with its last
// line, fit for a terminal.
struct CheckEnded {
  std::string failure;
  bool cannot_start = false;  // its program cannot be executed
};
struct DirectiveArrived {
  Directive directive;
};
// The way to the rendezvous went up or down; `detail` says why, for people.
struct LinkChanged {
  bool up = false;
  std::string detail;
  absl::Status fatal;  // not ok: trying again cannot help (another secret, not our job)
};
// What the leases of the server are, before they grow with the job.
struct LeaseTold {
  absl::Duration duration;
  absl::Duration renew_interval;
};
// A worker of `round` runs as `pid`.
struct WorkerSpawned {
  Round round;
  LocalRank local_rank;
  int pid = 0;
};
// A worker of `round` ended, `failure->age` before this event. `failure` is set unless it ended
// with 0.
struct WorkerExited {
  Round round;
  LocalRank local_rank;
  std::optional<WorkerFailure> failure;
  bool is_its_own = false;  // a failure that no signal of ours has led to, or whose reason we know
};
// How far this node is with asking what the ranks of `round` called last, since one of them has
// aborted (kept_back.h). Said anew whenever it changes.
struct LastCallsChanged {
  Round round;
  hangs::LastCallsState state;
};
// What a worker of `round` has said of itself, all of it: whether it obeys a stop, and the furthest
// step that it has begun (-1: none) if it has promised to begin none beyond until the stop step is
// named; whether it goes on in the next round in the same process, and whether it awaits that,
// having let go of this one.
struct WorkerPromised {
  Round round;
  LocalRank local_rank;
  bool obeys = false;
  std::optional<int64_t> floor;
  bool survives = false;
  bool awaits_round = false;
};
// A worker has connected, and said hello, as one of `round`.
struct WorkerGreeted {
  Round round;
  LocalRank local_rank;
};
// Answer to SweepDescendants and AwaitDescendants: no process is left below the guardian.
struct DescendantsGone {};
// Answer to NameDescendants: "aws s3 cp (pid 4711)".
struct DescendantsNamed {
  std::vector<std::string> names;
};
struct SignalReceived {
  int signal = 0;
};
// The job's time will be up soon, as its scheduler has said: if all workers obey, a stop step is
// asked for. Else nothing is done: the scheduler's own signal comes in its time.
struct TimeRunsOut {
  std::string reason;
};
struct GuardianLost {
  std::string reason;
};
// What the nodes found out about each other before the round's workers started forbids the job.
struct RoundForbidden {
  Departure departure;
};
// This node is node 0, and knows that members of `round` do not reach each other, as they must.
struct PairsFailed {
  Round round;
  std::vector<FailedPair> pairs;
};
struct Tick {};
using Event =
    std::variant<Started, PortsReserved, PortsFailed, CheckEnded, DirectiveArrived, LinkChanged,
                 LeaseTold, WorkerSpawned, WorkerExited, LastCallsChanged, WorkerPromised,
                 WorkerGreeted, DescendantsGone, DescendantsNamed, SignalReceived, TimeRunsOut,
                 GuardianLost, RoundForbidden, PairsFailed, Tick>;

struct SendReport {
  AgentReport report;
};
struct ReservePorts {};
// Runs the node's check. Answered by CheckEnded, unless EndCheck comes first.
struct RunCheck {};
// Ends the check that runs: nobody waits for its answer any more.
struct EndCheck {};
// Processes for all local ranks but `kept`, whose workers live and await this round.
struct StartWorkers {
  Assignment assignment;
  std::vector<LocalRank> kept;
};
// A rung of the stop ladder, or a signal that is passed on: `signal` to the process group of every
// live worker of this node but the spared. A worker that handles it itself gets it alone until
// `group_at`: what it has started, as the processes that load its data, is needed for its
// checkpoint.
struct SignalWorkers {
  int signal = 0;
  std::vector<LocalRank> spared;
  MonoTime group_at;  // also once that worker has ended; InfiniteFuture(): never
};
// SignalWorkers, or TellRoundOver, follows once the workers have answered (kept_back.h). Who ends
// from now on has been told to; and nobody is watched any more, where the round is being stopped.
struct PrepareSignal {
  int signal = 0;  // 0: of TellRoundOver
  std::vector<LocalRank> spared;
};
// SIGKILL to the process group of one live worker; `why` is for its failure.
struct EndWorker {
  LocalRank local_rank;
  std::string why;
};
// Goes to every worker of the round that survives rounds.
struct TellRoundOver {
  bool is_followed = false;  // else no round follows: they end
  std::string reason;
};
// A worker has failed by itself, as far as is known: for the record of this node.
struct NoteFailure {
  WorkerFailure failure;
};
// Goes to every worker of the round that obeys.
struct TellStop {
  StopState stop;
};
// `signal` to everything below the guardian that is not a live worker. Answered by DescendantsGone
// when empty.
struct SweepDescendants {
  int signal = 0;
};
// Signals nobody; answered by DescendantsGone when nothing is left below the guardian.
struct AwaitDescendants {};
// Asks who is below the guardian. Answered by DescendantsNamed.
struct NameDescendants {};
// The status line, shown when it changes and while something takes longer than a second.
struct ShowStatus {
  std::string text;
};
// One line for the console of this node.
struct Announce {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string event;
  std::string text;
};
// The agent is done; no worker is left, apart from those named unkillable.
struct Finish {
  JobOutcome outcome;
  bool in_haste = false;  // after a second interrupt
};
using Effect =
    std::variant<SendReport, ReservePorts, RunCheck, EndCheck, StartWorkers, SignalWorkers,
                 PrepareSignal, EndWorker, NoteFailure, TellStop, TellRoundOver, SweepDescendants,
                 AwaitDescendants, NameDescendants, ShowStatus, Announce, Finish>;
std::string ToString(const Effect& effect);

}  // namespace muster::agent

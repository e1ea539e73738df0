// Decides what one node does: when to join, start, stop and restart its local worker group, and
// when to end. Pure: same state, event and time give the same effects.
//
// The walk of one value: a Directive{RunRound} arrives as DirectiveArrived -> Effect
// StartWorkers{Assignment} -> the shell (agent/agent.cc) spawns through the guardian ->
// WorkerExited comes back -> the state of the group is reported to the rendezvous (SendReport),
// whose next directive says restart, or end.
//
// Threads: compatible; one caller at a time (Agent calls it on its loop thread).
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/agent_phase.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "proto/base/stop_state.h"

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
struct DirectiveArrived {
  Directive directive;
};
// The way to the rendezvous went up or down; `detail` says why, for people.
struct LinkChanged {
  bool up = false;
  std::string detail;
  absl::Status fatal;  // not ok: trying again cannot help (another secret, not our job)
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
// What the nodes found out about each other before the round's workers started forbids this node to
// run with the others.
struct RoundForbidden {
  Departure departure;
};
struct Tick {};
using Event =
    std::variant<Started, PortsReserved, PortsFailed, DirectiveArrived, LinkChanged, WorkerSpawned,
                 WorkerExited, WorkerPromised, WorkerGreeted, DescendantsGone, DescendantsNamed,
                 SignalReceived, TimeRunsOut, GuardianLost, RoundForbidden, Tick>;

struct SendReport {
  AgentReport report;
};
struct ReservePorts {};
// Processes for all local ranks but `kept`, whose workers live and await this round.
struct StartWorkers {
  Assignment assignment;
  std::vector<LocalRank> kept;
};
// A rung of the stop ladder, or a signal that is passed on: `signal` to the process group of every
// live worker of this node but the spared.
struct SignalWorkers {
  int signal = 0;
  std::vector<LocalRank> spared;
};
// SIGKILL to the process group of one live worker; `why` is for its failure.
struct EndWorker {
  LocalRank local_rank;
  std::string why;
};
// To every worker of the round that survives rounds.
struct TellRoundOver {
  bool is_followed = false;  // else no round follows: they end
  std::string reason;
};
// To every worker of the round that obeys.
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
// Who is below the guardian? Answered by DescendantsNamed.
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
};
using Effect = std::variant<SendReport, ReservePorts, StartWorkers, SignalWorkers, EndWorker,
                            TellStop, TellRoundOver, SweepDescendants, AwaitDescendants,
                            NameDescendants, ShowStatus, Announce, Finish>;
std::string ToString(const Effect& effect);

struct AgentCoreOptions {
  NodeDescription node;  // without ports
  RendezvousSettings settings;
  LeaseSettings lease;
  absl::Duration read_timeout;  // see JobSpec
  absl::Duration lost_peer_grace = absl::Seconds(5);
  // What ends quicker than this after the workers is not worth a line.
  absl::Duration leftover_notice = absl::Seconds(1);
  // A signal here stops the job, although it would be passed on to the workers otherwise.
  std::vector<int> stop_signals;
  absl::Duration unkillable_timeout = absl::Seconds(10);
  // What a worker that awaits a round, and is given its place in it, may take to come.
  absl::Duration hello_timeout = absl::Seconds(30);
  std::string server;         // "the rendezvous at node1:29400", for messages
  bool hosts_server = false;  // this process is the server too: it is never unreachable
};

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
  ServerTerm term() const { return term_; }  // the newest that has been heard of

  NodePhase phase() const { return phase_; }
  Round round() const { return round_; }
  bool is_leaving() const { return departure_.has_value(); }
  // A1: workers of two rounds never run together: one of an earlier round awaits the next. A2:
  // nothing is started while stopping. A3: outside a round a worker awaits the next; after Finish
  // none lives, but for the unkillable. A4: a report's round never falls. Empty if all hold.
  std::string CheckInvariants() const;

 private:
  // What follows once every worker of the round, and what they left behind, has ended.
  enum class After {
    kWait,    // they all succeeded
    kAsk,     // one failed: the rendezvous decides between a restart and the end
    kJoin,    // the next round
    kLeave,   // this node ends by its own decision
    kFinish,  // the job has ended
  };
  // Rungs of the stop ladder. Workers first, then what they left behind; that may end by itself
  // (kLingering) if they all succeeded.
  enum class Rung { kSignalled, kKilled, kLingering, kSweeping, kSweepKilled };
  struct Worker {
    LocalRank local_rank;
    int pid = 0;
    bool alive = true;
    bool obeys_stop = false;
    std::optional<int64_t> stop_floor;
    bool survives = false;
    bool awaits_round = false;
    bool is_kept = false;  // told that its round is over, and not signalled since
    MonoTime hello_due =
        MonoTime::InfiniteFuture();  // it was kept, and has its place in this round
    // No more is expected of it in its round.
    bool is_parked() const { return alive && is_kept && awaits_round; }
  };
  // This node has been told to end, and has asked for a stop step first.
  struct Wish {
    Departure departure;      // what follows if no step comes in time
    MonoTime grace_deadline;  // SIGKILL for the workers
    bool drain_me = false;
    MonoTime patience_ends;
  };
  struct TimedFailure {
    MonoTime at;
    WorkerFailure failure;
  };
  using Effects = std::vector<Effect>;

  void On(const Started&, MonoTime now, Effects& out);
  void On(const PortsReserved& event, MonoTime now, Effects& out);
  void On(const PortsFailed& event, MonoTime now, Effects& out);
  void On(const DirectiveArrived& event, MonoTime now, Effects& out);
  void On(const LinkChanged& event, MonoTime now, Effects& out);
  void On(const WorkerSpawned& event, MonoTime now, Effects& out);
  void On(const WorkerExited& event, MonoTime now, Effects& out);
  void On(const WorkerPromised& event, MonoTime now, Effects& out);
  void On(const WorkerGreeted& event, MonoTime now, Effects& out);
  void On(const DescendantsGone&, MonoTime now, Effects& out);
  void On(const DescendantsNamed& event, MonoTime now, Effects& out);
  void On(const SignalReceived& event, MonoTime now, Effects& out);
  void On(const TimeRunsOut& event, MonoTime now, Effects& out);
  void On(const GuardianLost& event, MonoTime now, Effects& out);
  void On(const RoundForbidden& event, MonoTime now, Effects& out);
  void On(const Tick&, MonoTime now, Effects& out);

  void Obey(const Wait& wait, MonoTime now, Effects& out);
  void Obey(const RunRound& run, MonoTime now, Effects& out);
  void Obey(const StopRound& stop, MonoTime now, Effects& out);
  void Obey(const StopAt& at, MonoTime now, Effects& out);
  void Obey(const EndJob& end, MonoTime now, Effects& out);
  void Obey(const Refuse& refuse, MonoTime now, Effects& out);

  // --- agent_core_keep.cc
  // Asks those that survive rounds to await the next, before the others are signalled.
  void KeepSurvivors(const std::string& reason, Effects& out);
  // Those that have not let go of their round in time are signalled like the others; false: there
  // are none.
  bool GiveUpSlowSurvivors(MonoTime now, Effects& out);
  // No round follows for this node: whoever awaits one is ended, and the stop ladder is climbed for
  // it. False: there are none.
  bool EndSurvivors(MonoTime now, Effects& out);
  // Signals these, and climbs the stop ladder for them.
  void EndParked(const std::vector<LocalRank>& ended, MonoTime now, Effects& out);
  std::vector<LocalRank> Kept() const;
  // In a round that runs, the next time at which one that was kept must have come to it.
  MonoTime HelloDeadline() const;
  void EndThoseThatDoNotCome(MonoTime now, Effects& out);

  // --- agent_core_leave.cc
  // False if it is no use: workers that do not obey, or no server to be heard.
  bool AskForStopStep(const Departure& departure, MonoTime now, Effects& out);
  void GiveUpWish(MonoTime now, Effects& out);
  // What every local worker has promised, if each has.
  std::optional<int64_t> StopFloor() const;
  void TellWorkersOfStop(Effects& out) const;
  // Workers that hold for a step that is open wake: signals follow.
  void WithdrawStop(Effects& out);

  void Enter(NodePhase phase);
  void JoinAgain(Effects& out);
  // `kept_for`: why another round is expected, for those who go on in it; empty: none is.
  void BeginStop(After after, int first_signal, absl::Duration grace, MonoTime now, Effects& out,
                 const std::string& kept_for = "");
  void ClimbLadder(MonoTime now, Effects& out);
  void BeginSweep(MonoTime now, Effects& out);
  // Another end than success has come up: what was left to end by itself is ended.
  void EndLingering(MonoTime now, Effects& out);
  void GroundReached(MonoTime now, Effects& out);
  // The node ends by its own decision: stops its workers first, if there are any.
  void Depart(Departure departure, MonoTime now, Effects& out);
  void EndWith(JobOutcome outcome, MonoTime now, Effects& out);
  void Conclude(JobOutcome outcome, Effects& out);
  void GiveUpOnServer(MonoTime now, Effects& out);
  // The server that knew the outcome is gone: what it said last is the end.
  void EndAsTold(const std::string& why_no_more, MonoTime now, Effects& out);
  // The server knows the agent's instance again, or for the first time.
  void NoteAttended(MonoTime now, Effects& out);
  void NoteUnattended(const std::string& event, const std::string& why, Effects& out);
  // What the server says of an agent that it once accepted, and cannot mean it.
  bool IsStranger(const Refuse& refuse) const;
  void BeginAnew(const std::string& why, MonoTime now, Effects& out);
  void Report(MonoTime now, Effects& out);
  AgentReport MakeReport(MonoTime now);
  AgentPhase ReportedPhase() const;
  int NumAlive() const;
  // Those that are neither parked nor dead.
  int NumRunning() const;
  MonoTime ServerDeadline() const;
  void AnnounceFailure(const WorkerFailure& failure, Effects& out) const;

  // Constant after construction.
  AgentCoreOptions options_;

  // Loop thread only.
  NodePhase phase_ = NodePhase::kIdle;
  NodeDescription node_;  // with the ports of the round being joined
  Round round_ = kNoRound;
  Round last_reported_round_ = kNoRound;
  Instance instance_;
  int num_nodes_ = 0;  // of `round_`
  JobPast past_;
  ServerTerm term_;
  uint64_t last_revision_ = 0;
  uint64_t sequence_ = 0;
  std::vector<Worker> workers_;     // of `workers_round_`; between rounds, those that are parked
  Round workers_round_ = kNoRound;  // the last in which this node ran workers
  std::vector<TimedFailure> failures_;  // of `round_`
  std::vector<int> unkillable_pids_;

  After after_ = After::kWait;  // valid while kStopping
  Rung rung_ = Rung::kSignalled;
  MonoTime rung_deadline_ = MonoTime::InfiniteFuture();
  MonoTime grace_deadline_ = MonoTime::InfiniteFuture();
  bool ladder_started_ = false;           // a signal of ours has reached the workers
  std::optional<std::string> leftovers_;  // since the workers ended, once they have been listed
  std::optional<StopRound> job_failed_;   // told so of `round_`; the outcome is still to come
  std::optional<JobOutcome> outcome_;     // valid with After::kFinish
  std::optional<Departure> departure_;
  bool interrupted_twice_ = false;

  std::optional<StopAt> stop_at_;  // of `round_`
  std::optional<Wish> wish_;

  bool link_up_ = false;
  bool heard_server_ = false;  // at least one directive has come
  bool was_accepted_ = false;  // and one at least was no refusal: from now on none is fatal
  std::string unattended_;     // why the server does not serve us now, as announced; empty: it does
  std::string link_detail_;
  MonoTime last_heard_;  // of a server that serves us; before the first directive: the start
  MonoTime last_sent_;
  // Reports without an answer yet, with when they were made; at most kMaxUnanswered.
  std::deque<std::pair<uint64_t, MonoTime>> unanswered_;
  MonoTime answered_;  // when the newest report that has been answered was made
  std::string shown_status_;
};

}  // namespace muster::agent

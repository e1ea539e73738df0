// Decides who is in the round of one job. Pure: same state, event and time give the same effects.
//
// The walk of one value: a joining report arrives as AgentReported -> DecideRound
// (round_decision.h) says that the round is complete -> AssignRanks (rank_assignment.h) numbers the
// nodes -> Effect SendDirective{RunRound}.
//
// Threads: compatible; one caller at a time (RendezvousServer calls it on its loop thread).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "proto/base/stop_request.h"
#include "rendezvous/core/round_state.h"
#include "rendezvous/core/store_core.h"

namespace muster::rendezvous {

// Something that happened to the job.
struct AgentReported {
  Incarnation from;
  AgentReport report;
};
// The agent's stream broke. Its lease runs on; it may come back with the same incarnation.
struct AgentDisconnected {
  Incarnation from;
};
// The process that hosts this server leaves (a signal, its job's end). Everyone is told.
struct HostLeaving {
  Departure departure;
  std::string host_name;
};
// A worker of the agent asks whether it may publish a checkpoint (CommitCheckpoint in
// proto/base/store_messages.h).
struct CommitRequested {
  Incarnation from;
  uint64_t request_id = 0;
  Round round;
  CommitCheckpoint checkpoint;
};
// A person asks that the job, or one node of it, stops.
struct StopRequested {
  Incarnation from;
  StopRequest request;
};
// The agent's process has ended without a farewell, and all of its workers with it: its guardian
// says so, and the caller has made sure that it is the guardian. `from` awaits the answer.
struct AgentEnded {
  Incarnation from;
  Incarnation agent;
};
// The hang watch has judged: members of the running round are at fault, and are to leave the job.
struct NodesAtFault {
  std::vector<Incarnation> nodes;
  std::string why;
};
struct Tick {};
using Event = std::variant<AgentReported, AgentDisconnected, HostLeaving, CommitRequested,
                           StopRequested, AgentEnded, NodesAtFault, Tick>;

// What the shell must do. Sending twice is harmless: directives are complete statements.
struct SendDirective {
  Incarnation to;
  Directive directive;
  friend bool operator==(const SendDirective&, const SendDirective&) = default;
};
struct SendAnswer {
  Incarnation to;
  StopAnswer answer;
  friend bool operator==(const SendAnswer&, const SendAnswer&) = default;
};
// One line for the log, once per change. `event` is the log's event name.
struct Announce {
  std::string event;
  std::string reason;
  Round round;
  friend bool operator==(const Announce&, const Announce&) = default;
};
// Every agent knows the end, or has had close_timeout to learn it: the instance may be forgotten.
struct Retire {
  friend bool operator==(const Retire&, const Retire&) = default;
};
// The record of the job has changed: what follows in this step may leave the server only once the
// record is durable, where it is kept at all.
struct KeepRecord {
  bool is_new_round = false;  // RoundRecord has changed, too
  friend bool operator==(const KeepRecord&, const KeepRecord&) = default;
};
using Effect =
    std::variant<SendDirective, SendStoreReply, SendAnswer, Announce, Retire, KeepRecord>;
std::string ToString(const Effect& effect);

struct CoreOptions {
  ServerTerm term;
  Instance instance;
  LeaseSettings lease;
  // No round is completed before: agents of an earlier life of the server may still run one.
  MonoTime young_until;
  std::vector<std::string> node_names;  // by --node_rank, for messages; empty: not known
  Incarnation
      host;  // of the agent in the server's process, without which there is no server; 0: none
};

// Nobody of the job has been heard for this share of a lease (of three renewals, if that is more):
// perhaps it is the server that hears nothing. Then no lease ends, and the first agent that reports
// renews everyone's.
inline constexpr double kSilenceOfAll = 0.5;
// How often in a row a node's lease is renewed that way, so that a dead one is found also where
// few report, and late.
inline constexpr int kMaxFreeRenewals = 2;

class RendezvousCore {
 public:
  explicit RendezvousCore(CoreOptions options);
  // Goes on with a job whose server died: RestoreState (round_restore.h).
  RendezvousCore(CoreOptions options, JobRecord record, MonoTime now);

  // Applies `event` at `now` and returns what the shell must do, in this order. `now` must not go
  // back. Every AgentReported is answered by one SendDirective at least, every CommitRequested by
  // one SendStoreReply, every StopRequested and AgentEnded by one SendAnswer. The first report
  // defines the settings. `revision` of directives is left 0: JobTable numbers those of all its
  // jobs on their way out.
  std::vector<Effect> Step(const Event& event, MonoTime now);

  // Earliest instant at which Step(Tick{}, t) would return something; InfiniteFuture() if none.
  MonoTime NextDeadline() const;

  // The state, for the status page and for tests. Valid until the next Step.
  const JobState& state() const { return state_; }

  // R1..R13 (round_state.h); empty if all hold, else the first broken one in words.
  std::string CheckInvariants() const;

 private:
  // One Step on its way: what it sends, and whether every connected agent hears of it.
  struct Turn {
    MonoTime now;
    std::vector<Effect> effects;
    bool tell_all = false;
  };

  void On(const AgentReported& event, Turn& turn);
  void On(const AgentDisconnected& event, Turn& turn);
  void On(const HostLeaving& event, Turn& turn);
  void On(const CommitRequested& event, Turn& turn);
  void On(const StopRequested& event, Turn& turn);
  // Its lease ends as soon as what it said before has been heard, which is when its stream is seen
  // to have broken.
  void On(const AgentEnded& event, Turn& turn);
  // Does nothing where the job cannot do without one of them (NodesToSpare, CoreOptions::host).
  void On(const NodesAtFault& event, Turn& turn);
  void On(const Tick&, Turn&) {}

  // The answer to a report that changes nothing; none if the report counts.
  std::optional<DirectiveBody> AnswerWithoutChange(const AgentReported& event, MonoTime now) const;
  // It will be let in once a lease has ended.
  bool IsAwaitingPlace(const AgentReported& event, MonoTime now) const;
  void NoteAwaiting(int node_rank, Incarnation from, MonoTime now);
  void OnFarewell(Incarnation from, const AgentReport& report, Turn& turn);
  DirectiveBody AnswerFarewell(const AgentReport& report) const;
  NodeState& Remember(Incarnation from, const AgentReport& report, Turn& turn);
  void ApplyPhase(NodeState& node, Turn& turn);
  void ApplyJoining(NodeState& node, Turn& turn);
  void ApplyMemberPhase(const NodeState& node, Turn& turn);
  // Members that must reach each other do not: the larger side goes on, or the job ends.
  void PartMembers(const std::vector<FailedPair>& pairs, Turn& turn);

  // --- rendezvous_leases.cc
  // Somebody was heard. After a silence of all everyone gets a fresh lease.
  void Hear(Turn& turn);
  bool IsSilentAt(MonoTime when) const;
  MonoTime NextLeaseEnd() const;
  void RenewLease(NodeState& node, MonoTime now);
  void ExpireLeases(std::optional<Incarnation> except, Turn& turn);
  // It has ended without a farewell, and so has its stream.
  void LoseEnded(Incarnation node, Turn& turn);
  // A new start of a node that died while it waited takes its place.
  void Supersede(const AgentReport& report, Turn& turn);
  // Removes a node that is gone, and decides what follows for its round. `departure` is empty for a
  // lost one.
  void Lose(Incarnation node, const std::string& reason, const std::optional<Departure>& departure,
            Turn& turn);
  std::string NameOf(Incarnation node) const;
  // A node that left by itself still speaks: its workers are ending, and may save.
  void HearFormer(Incarnation node, MonoTime now);
  void Forget(Incarnation node);

  // --- rendezvous_stop.cc
  StopAnswer Stop(const StopRequest& request, Turn& turn);
  StopAnswer Drain(const StopRequest& request, Turn& turn);
  void DrainNode(NodeState& node, DrainedNode why, bool at_once, Turn& turn);
  // The job, or where `asked` says so its running round, is to stop.
  void BeginStop(StopStep asked, bool at_once, Turn& turn);
  void ObeyWish(const NodeState& node, Turn& turn);
  void AdvanceStop(Turn& turn);
  // Stops by signals, as a round or a job is stopped otherwise, where there is no step that all
  // agree on.
  void StopBySignals(const std::string& why, Turn& turn);
  // Every worker of the round has ended with 0.
  void FinishRound(Turn& turn);

  // What follows from state and time alone, whatever the event was.
  void Advance(Turn& turn);
  void CompleteRound(const std::string& reason, Turn& turn);
  // The members of a round that completes: who they are, and what they bring of the job's past.
  void TakeMembers(MonoTime now);
  // Their places in it.
  void Assign(const std::string& reason);
  // Ends the running round when its time has come for the nodes that want to come in.
  void Grow(Turn& turn);
  // Ends a job of which nobody has been heard for the orphan time-out.
  void GiveUpOnSilence(Turn& turn);
  // A restart if the budget has one left, else the end of the job with `outcome`.
  void RestartOrEnd(const std::string& reason, bool peer_lost, JobOutcome outcome, Turn& turn);
  void EndRound(StopCause cause, std::string reason, bool peer_lost, Turn& turn);
  void BeginEnding(JobOutcome outcome, bool peer_lost, Turn& turn);
  void End(Turn& turn);

  void Enter(JobPhase phase, Turn& turn);
  void Note(std::string event, std::string reason, Turn& turn) const;
  void Send(Incarnation to, uint64_t report_sequence, DirectiveBody body, Turn& turn) const;
  void Tell(NodeState& node, Turn& turn) const;

  // Constant after construction.
  CoreOptions options_;
  // Loop thread only.
  JobState state_;
};

}  // namespace muster::rendezvous

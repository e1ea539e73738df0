// Whole clusters in one thread on a virtual clock: the real JobTable as server, real AgentCores on
// nodes with fake workers that use the store, and a network that loses, delays, repeats and
// reorders. Nodes, server, links and processes fail as the plan says; all of it follows from the
// seed.
//
// A run has two phases. In the first, faults happen. Then they end, and within a bounded time every
// agent must finish and the server must have forgotten the jobs.
//
// Checked after every event: the invariants of the object it touched. Across objects:
//   C1: a round means one membership, and its ranks one node each.
//   C2: a round starts only where no other round of the job may still run: its nodes are in it, are
//       lost by their lease, or have left.
//   C3: a completed round holds no node that the server knows to be gone.
//   C4: the attempt of an agent's round is later than any that it ran before, over all server
//       lives.
//   C5: an ended instance has one outcome, and it follows from what was drawn: a failure of just
//       that worker and a budget that is spent, a signal, a broken node, a person who asked; the
//       join time-out only if too few nodes could join, and 75 only if nobody could reach the
//       server for so long.
//   C6: an agent ends by its job's end, by what was drawn for itself, or as one that was refused
//       rightly or could not reach its server for as long as it waits.
//   C7: where only the server and the way to it fail, no worker is signalled; but for the round of
//       which a server has lost its record, once it has run for the orphan time-out.
//   C8: the store of a round gives what was put there in that round, and a unique id from its rank
//       0.
//   C9: rounds are bounded: at most two for each thing that happened, and one for each node that
//       comes. A node that flaps has no more than the membership policy grants it, however often it
//       does.
//   C10: a checkpoint is committed only by a member of the newest round of all server lives, whose
//        lease runs, or whose job has ended.
//   C11: a server with durable state knows every round that it has let anybody hear of, also after
//        its death; restarts used never fall, and with C7 no worker is signalled for it.
//   C12: the stop step of a round never changes, no worker begins a step beyond it, but for one
//        that is to be ended by signals, and who leaves for it leaves after it. A node that has
//        been drained is in no later round.
//   C13: who is kept over into a round was told that its own is over, and has let go of it.
//   C14: a node is lost only if it was silent for its lease, or its agent has died.
//   C15: while workers are asked what they called last, none is signalled but by SIGKILL, or told
//        that its round is over; and neither that nor a failure waits for longer than the inquiry
//        may take.
//   P2: the report of a node whose check runs, or has failed, ends no round that runs without it,
//       and no node runs workers, or is taken into a round, before its check has passed: first,
//       and since the last failure of its own workers.
//   L1: within the longest hold-back and two leases after the faults a job whose work does not end
//       runs a round of all its healthy nodes, up to MAX; and another job ends within these, the
//       join and orphan time-outs, and two rounds (tests/simulation/sim_liveness.cc).
//   L2: no more than half of the nodes are held back.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/agent_core.h"
#include "rendezvous/core/effect_gate.h"
#include "rendezvous/core/job_table.h"
#include "tests/simulation/sim_plan.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_schedule.h"

namespace muster::simulation {

// The wall clock of the server's machine, and what follows from it.
struct SimTerms {
  absl::Duration wall_offset;
  ServerTerm present;
  ServerTerm first_kept;  // of which the disk has all records
  ServerTerm on_disk;
  bool was_damaged = false;  // records of earlier terms were lost
  bool is_torn = false;      // the newest of the last life was
};

// What happened in a run: a test demands that all of it happens in some seed.
struct SimCoverage {
  int rounds = 0;
  int restarts = 0;
  int membership_changes = 0;
  int losses = 0;
  int deaths_noticed = 0;  // a node was lost by the word of its guardian
  int successes = 0;
  int job_failures = 0;
  int timeouts = 0;
  int server_lives = 0;
  int unrecorded_rounds = 0;   // agents of an earlier life came to a server without its state
  int silences = 0;            // nobody was heard, and then somebody
  int held_back = 0;           // a node came and went too often
  int unique_ids = 0;          // handed to a rank
  int strangers_survived = 0;  // an accepted agent met an impostor
  int restored_jobs = 0;       // a server with durable state went on with a job that was not over
  int commits = 0;
  int commits_refused = 0;
  int misfits_refused = 0;
  int states_damaged = 0;
  int written_unknown = 0;  // transactions that were durable, of which their server did not hear
  int writes_lost = 0;      // that were durable, and told
  int lies = 0;
  int growths_at_commits = 0;  // a round ended for a newcomer right after a checkpoint
  int stops_at_one_step = 0;   // workers that left for a stop step
  int jobs_stopped = 0;        // ended by a request, after a step
  int nodes_drained = 0;
  int nodes_replaced = 0;    // of a round, by the hang watch
  int stops_by_signals = 0;  // a step was not agreed on in time
  int stops_restored = 0;    // a server with durable state went on with a stop that was not done
  int kept = 0;              // workers that went on in another round
  int parked_deaths = 0;     // ended while they awaited one
  int survivors_ended = 0;   // told that none follows
  int inquiries = 0;         // word that one has begun, or goes on
  int signals_kept = 0;      // for workers that were asked
  int failures_kept = 0;     // for the same, or for what other nodes' workers called
  int rounds_checked = 0;    // every pair of a required network reached each other
  int rounds_parted = 0;     // some did not
  int jobs_parted = 0;       // ended, since too few nodes were left
  int checks_passed = 0;
  int checks_failed = 0;
  int rounds_without_unfit = 0;  // reports of nodes that do not pass their check, while one runs
  void Add(const SimCoverage& other);
};

class SimCluster {
 public:
  // `plan` may lack families of the one that the seed draws.
  SimCluster(uint64_t seed, SimPlan plan, bool trace);
  static SimPlan PlanOf(uint64_t seed);

  // Runs the seed to its end. Empty, or the first thing that broke, with the plan and the last
  // effects.
  std::string Run();
  const SimCoverage& coverage() const { return coverage_; }

 private:
  using RoundId = std::pair<Instance, Round>;
  struct Worker {
    LocalRank local_rank;
    int pid = 0;
    bool alive = true;
    bool is_stubborn = false;
    bool is_unkillable = false;
    bool is_liar = false;
    // State of a program that asks whether to stop.
    int64_t step = -1;  // the furthest begun
    StopState told;
    uint64_t newest_told = 0;  // of all that any worker is told
    bool is_holding = false;
    bool is_released = false;  // signals follow, as its agent says
    // State of a program that survives rounds.
    bool is_told = false;  // that its round is over
    bool awaits_round = false;
  };
  // What was drawn for a node, and how well it could reach the server: what its end may follow
  // from.
  struct NodeCauses {
    std::set<int>
        exit_codes;  // of an end that was drawn for it: a signal, a guardian or ports lost
    // The time since which its agent runs, is connected, and nothing is in its way; and the last at
    // which it had been so for kWellFor.
    std::optional<MonoTime> well_since;
    std::optional<MonoTime> last_well;
    std::map<uint64_t, Instance> reported;  // by sequence: what its reports said to the server
    std::set<std::string> refusals;         // that have reached it
    std::optional<StopRound> job_failed;    // it was told that its job ends, and not yet how
  };
  // Into what the ranks of a round called last.
  struct Inquiry {
    RoundId round;
    MonoTime ends;
    bool asks_workers = false;
    bool awaits_judge = false;
  };
  // What an agent knows of the inquiry, by its clock.
  struct HeardInquiry {
    MonoTime until = MonoTime::InfiniteFuture();
    bool asks_workers = false;
    bool awaits_judge = false;
  };
  // A node's own check.
  struct Check {
    uint64_t number = 0;  // of the one that runs; 0: none
    bool has_passed = false;
  };
  struct Node {
    Incarnation incarnation;
    int job = 0;
    std::string name;
    std::optional<int> node_rank;
    bool hosts = false;  // the embedded server
    std::unique_ptr<agent::AgentCore> core;
    std::vector<Worker> workers;
    std::optional<Assignment> assignment;
    int newest_attempt = -1;
    double clock_rate = 1;     // its seconds in one of ours
    bool is_alive = true;      // the agent process
    bool is_connected = true;  // its stream, as it sees it
    bool was_accepted = false;
    bool is_leaving = false;
    int stream = 0;  // number of the stream: the server drops what an older one says of its end
    uint64_t timer = 0;
    bool is_paused = false;  // a stopped process: what happens to it meanwhile is held, in order
    std::vector<agent::Event> held_events;
    MonoTime cut_up_until;
    MonoTime cut_down_until;
    // When the present life of the server last heard it, by that server's clock.
    std::optional<MonoTime> heard_at;
    // Its stream to this life of the server has broken, or not begun, and it was not heard since.
    bool is_away = false;
    uint64_t heard_sequence = 0;
    bool has_lapsed = false;                           // its lease, while it ran its round
    agent::NodePhase phase = agent::NodePhase::kIdle;  // as traced
    uint64_t store_requests = 0;
    std::map<uint64_t, std::string> expected;  // by request id: what each value must be
    std::map<uint64_t, Assignment> commits;    // by request id: of which round each is
    std::vector<JobOutcome> told;              // every EndJob that has reached it
    std::optional<JobOutcome> finished;        // as it ended
    NodeCauses causes;
    Inquiry inquiry;             // the last one
    HeardInquiry heard_inquiry;  // of the present round
    int signals_kept = 0;        // that are to follow
    Check check;
  };
  // What the end of a job may follow from.
  struct JobCauses {
    std::vector<WorkerFailure> failures;                  // as they were drawn and happened
    std::set<RoundId> failed_rounds;                      // those of `failures`
    std::map<std::pair<RoundId, int>, int> exits_with_0;  // of workers, by node rank
    std::map<RoundId, std::set<int>> succeeded;  // node ranks whose workers have all ended so
    std::map<RoundId, int> num_nodes;
    std::set<int> exit_codes;  // of nodes that left for what was drawn for them
    int asked_to_stop = 0;     // by a person, or the hang watch: the job, or a node of it
    std::set<std::pair<RoundId, Incarnation>> losses;  // of members, each by C14
    std::optional<MonoTime> enough_since;              // as many nodes as a round needs could join
    std::map<Instance, MonoTime> ended;                // when the server decided it
    Instance newest;
    std::set<std::string> hostile_names;  // as whom a hostile member has reported
    std::set<AgentPhase> hostile_phases;
    int hostile_restarts = 0;    // the most that it has claimed that were used
    RoundId hostile_round;       // the newest that it has claimed to be in
    bool may_end_apart = false;  // in a round too few nodes reached all others
    std::vector<MonoTime> ends_told_to_hostile;
    // What the server hears of a hostile member at this instant.
    const AgentReport* foreign = nullptr;
  };
  struct ToldOutcome {
    JobOutcome outcome;
    bool is_final = false;  // the job had ended by then
  };
  // What a job has come to, and what its rounds may be due to.
  struct JobFate {
    JobCauses causes;
    bool was_host_lost = false;
    int disturbances = 0;    // but for the flapping of a node
    int deaths_noticed = 0;  // of which a guardian told
    int rounds = 0;
    MonoTime last_round_at;
    RoundId newest_round;
    RoundId newest_told;  // what a server decides and does not write before it dies has never been
    int64_t step = 0;
    std::map<Instance, int> restarts_used;
    std::map<Instance, ToldOutcome> outcomes;  // as somebody was told last
  };

  // --- sim_cluster.cc: agents
  void StartNode(int job, const std::string& name, std::optional<int> node_rank, bool hosts);
  void StepAgent(Incarnation id, agent::Event event);
  void Perform(Node& node, const agent::Effect& effect);
  void FinishNode(Node& node, const JobOutcome& outcome);
  void ArmAgent(Node& node);
  const SimJobPlan& JobOf(const Node& node) const { return plan_.jobs[node.job]; }
  static rendezvous::JobKey KeyOf(int job);
  static int JobOfKey(const rendezvous::JobKey& key);

  static RoundId IdOf(const Assignment& assignment) {
    return {assignment.instance, assignment.round};
  }

  MonoTime NowOf(const Node& node) const {
    return MonoTime::At(schedule_.now().since_zero() * node.clock_rate);
  }

  // --- sim_hostile.cc: reports that no agent of ours makes
  void InjectForeignReports(int job);
  void SendForeign(int job, Incarnation from, const AgentReport& report);
  static Incarnation HostileOf(int job);
  AgentReport DrawHostileReport(int job);
  void NoteHostileReport(int job, const AgentReport& report);
  void CheckMisfit(int job);
  // What a worker of the node asks of the store that is refused, as a rule.
  void AskOddly(int job);
  std::vector<StoreRequest> DrawOddRequests(Node& node);
  // What the pages of an observer do.
  void LookAtJobs();
  // The most steps that a lying worker promises.
  static constexpr int kMostStepsOfALie = 60;
  void Lie(Incarnation id, RoundId round, int local_rank);

  // --- sim_workers.cc
  void StartWorkers(Node& node, const Assignment& assignment, const std::vector<LocalRank>& kept);
  void SignalWorkers(Node& node, const agent::SignalWorkers& effect);
  // What they have left behind ends, or the agent's next rung is waited for.
  void EndLeftovers(Node& node);
  void TellRoundOver(Node& node, bool is_followed);
  // C7.
  void CheckDisturbs(const Node& node);
  // Tells the agent all that the worker has said.
  void Promise(Incarnation id, RoundId round, int local_rank, std::optional<int64_t> floor);
  void ScheduleExit(Node& node, LocalRank local_rank, absl::Duration delay,
                    std::optional<WorkerFailure> failure);
  void NoteExit(const Node& node, const std::optional<WorkerFailure>& failure);
  void UseStore(Node& node);
  void Checkpoint(Incarnation id, const Assignment& of);
  uint64_t SendStoreRequest(Node& node, StoreOperation operation, const std::string& expected);
  void OnStoreReply(Incarnation to, const StoreReply& reply);

  // --- sim_inquiries.cc: what ranks called last, where a worker of `node` has aborted
  void BeginInquiries(const Node& node);
  void Inquire(Incarnation id, RoundId round, absl::Duration limit, bool awaits_judge);
  void TellInquiry(Incarnation id, RoundId round);
  void NoteHeardInquiry(Node& node, const agent::LastCallsChanged& event);
  void CheckAtEndOfInquiry(const Node& node, std::function<std::string(Node&)> why_late);
  void PrepareSignal(Node& node);
  void CheckMaySignal(Node& node);
  void CheckFailureIsTaken(const Node& node, const agent::WorkerExited& event);

  // --- sim_node_checks.cc
  void RunCheck(Node& node);
  void CheckIsFit(const Node& node);
  // The agent takes it at once, and for a failure of the node: its check is due.
  bool IsOwnFailure(const Node& node, const WorkerFailure& failure) const;
  // P2. `ran_without`: by then a round ran without the node that has reported.
  void CheckEndsNoRound(const Node& node, const AgentReport& report, bool ran_without,
                        const std::vector<rendezvous::JobTable::JobEffect>& effects);

  // --- sim_split.cc: a network that is required
  bool IsBroken(int job, const std::string& a, const std::string& b) const;
  // Pairs of a round that fail, the same for all its nodes.
  const std::vector<FailedPair>& CheckPairs(const Node& node, const Assignment& assignment);
  void HoldWorkers(Node& node, const Assignment& assignment);
  std::string WhyWrongSplit(int job) const;
  // It waits as a spare for a pair that failed, as the server knows.
  bool IsApart(const Node& node) const;

  // --- sim_stop.cc: steps, promises, and who asks for a stop
  void BeginStep(Incarnation id, RoundId round, int local_rank);
  void TellStop(Node& node, const StopState& stop);
  void HearStop(Incarnation id, RoundId round, int local_rank, const StopState& stop);
  // nullptr if it has ended.
  Worker* FindWorker(Incarnation id, RoundId round, int local_rank);
  void InjectRequests();
  void AskForStop(int job, const std::string& node);
  // One of its nodes that live; one of two starts of a node that the server knows, if there are.
  std::string NodeToDrain(int job, const std::vector<const Node*>& alive);
  void FindAtFault(int job, const Node& node);

  // --- sim_server.cc
  void StartServer();
  void DrawTerm();
  // Whether it knows them by its disk: there is one, and nothing on it was damaged.
  bool KnowsAllRounds() const { return plan_.is_durable && !terms_.was_damaged; }
  bool IsOfThisLife(Instance instance) const {
    return instance >= rendezvous::FirstInstanceOf(terms_.present);
  }
  void CrashServer();
  // It is started again after a while.
  void KillServer();
  void StallServer(absl::Duration length);
  MonoTime ServerNow() const { return schedule_.now() - stalled_; }
  // Does `act` with the table now, after the stall, or never.
  void AtServer(std::function<std::vector<rendezvous::JobTable::JobEffect>()> act);
  void StepServer(std::vector<rendezvous::JobTable::JobEffect> effects);
  void ArmServer();
  void Leave(std::vector<rendezvous::JobTable::JobEffect> effects);
  // The disk of a server with durable state: when it crashes, what is being written is lost, or is
  // there and nobody knows.
  void Write(std::vector<rendezvous::JobTable::JobEffect> keeps, uint64_t ticket);
  void SyncDisk();
  void CommitInFlight();

  // --- sim_network.cc
  enum class Direction { kUp, kDown };
  void Deliver(Incarnation node, Direction direction, std::function<void()> act);
  bool IsCut(const Node& node, Direction direction) const;
  void SendReport(Node& node, AgentReport report);
  void NoteHeard(Node& node, uint64_t sequence);
  void TellDisconnect(Incarnation id, int stream);
  void BreakStream(Node& node, const std::string& why);
  void Reconnect(Incarnation id);

  // --- sim_faults.cc
  void InjectFaults();
  void InjectNodeFaults(Incarnation id);
  void InjectServerFaults();
  // Something that ends the node, or its job, with this exit code.
  void NoteCause(Node& node, int exit_code);
  void Warn(Node& node);
  void SignalAgent(Node& node, int signal);
  void Crash(Node& node, bool is_back_soon);
  // The guardian of a killed agent tells the server, until somebody answers or `until`.
  void SendDeathNotice(Incarnation id, MonoTime until);
  void Pause(Node& node, absl::Duration length);
  void Resume(Incarnation id);
  void Cut(Node& node, Direction direction, absl::Duration length);
  void Heal();

  // --- sim_checks.cc
  void CheckAssignment(Node& node, const Assignment& assignment);
  void CheckNewRound(int job, Instance instance, Round round);
  bool IsSaidToBeOver(const Node& node) const;
  void CheckCommit(const rendezvous::SendStoreReply& reply);
  bool IsLossOfOneThatLives(int job, const rendezvous::Announce& announce) const;
  // C9.
  int RoundsBound(int job) const;
  // Effects are observed as they are decided, and directives as they leave.
  void Observe(const rendezvous::JobTable::JobEffect& effect);
  void ObserveDirective(int job, const rendezvous::SendDirective& send);
  void ObserveStopAt(int job, const Directive& directive, const StopAt& at);
  void CheckLosses(int job);
  void NoteLossAtTheEnd(int job, const rendezvous::Announce& announce);
  // Families that harm nobody but the server and the ways to it.
  bool HarmsOnlyTheServer() const;
  std::string CheckEnd() const;

  // --- sim_ends.cc: each end, from what was drawn
  // Twice a second: who could reach the server, and since when.
  void Sample();
  bool IsWell(const Node& node) const;
  bool CouldJoin(const Node& node) const;
  // It could reach its server for long, at some time after `since`.
  static bool WasWellAfter(const Node& node, MonoTime since);
  bool WasAnyWellAfter(int job, MonoTime since) const;
  void ObserveEnd(int job, const Directive& directive, const JobOutcome& outcome);
  void ObserveRefusal(const Node& node, const Directive& directive, const absl::Status& status);
  // Empty, or why the outcome does not follow from what was drawn.
  std::string WhyWrong(int job, Instance instance, const JobOutcome& outcome) const;
  // Each agent that ran the round was there for this life of the server.
  bool CouldAllSay(int job, RoundId round) const;
  bool WasDrawn(int job, const WorkerFailure& blamed) const;
  // Rounds that a restart may have followed, or the end.
  int RestartsDue(int job) const;
  std::string WhyBudgetIsLeft(int job) const;
  std::string WhyWrongFailure(int job, const JobOutcome& outcome) const;
  std::string WhyWrongLossOfNode(int job, const JobOutcome& outcome) const;
  std::string WhyWrongTimeout(int job) const;
  std::string WhyWrongLoss(int job, Instance instance) const;
  std::string WhyWrongStandstill(int job) const;
  bool HasSucceeded(int job, RoundId round) const;
  std::vector<RoundId> RoundsOf(int job, Instance instance) const;
  void CheckFinish(const Node& node, const JobOutcome& outcome);

  // --- sim_liveness.cc: L1
  void ExpectRound(int job);
  void ExpectEnd(int job);
  // Every wait that the job may be owed now, one after the other.
  absl::Duration LongestWait(int job) const;
  std::string WhyNoRound(int job) const;
  bool IsOver(int job) const;
  void StopUntilOver(int job);
  std::string WhyWrongAsTold(const Node& node, const JobOutcome& outcome) const;
  std::string WhyWrongFinish(const Node& node, const JobOutcome& outcome) const;
  void Trace(const std::string& who, const std::string& what);
  void Fail(const std::string& what);

  SimPlan plan_;
  SimRandom random_;
  SimSchedule schedule_;
  const bool trace_;
  const uint64_t seed_;

  std::map<Incarnation, Node> nodes_;  // never erased
  std::vector<JobFate> fates_;
  bool is_healed_ = false;

  std::unique_ptr<rendezvous::JobTable> table_;  // null while the server is down
  int server_life_ = 0;
  MonoTime server_since_;
  SimTerms terms_;
  uint64_t server_timer_ = 0;
  rendezvous::EffectGate gate_;
  using Disk = std::map<std::pair<rendezvous::JobKey, Instance>, rendezvous::KeptJob>;
  Disk disk_;
  std::optional<Disk> before_newest_;  // without the newest transaction of the present life
  std::vector<rendezvous::JobTable::JobEffect> unsynced_;
  std::vector<rendezvous::JobTable::JobEffect> in_flight_;  // the transaction being written
  uint64_t unsynced_ticket_ = 0;
  bool is_syncing_ = false;
  MonoTime disk_stalls_until_;
  absl::Duration stalled_;  // in all, by the present life
  bool is_stalling_ = false;
  std::vector<std::function<void()>> held_at_server_;
  MonoTime blackout_until_;

  // (job, instance, round) -> node rank -> who has been told to run it.
  using RoundKey = std::tuple<int, Instance, Round>;
  std::map<RoundKey, std::map<int, Incarnation>> history_;
  std::map<RoundKey, int> world_sizes_;
  std::map<RoundKey, std::vector<FailedPair>> checks_;
  std::map<RoundKey, int64_t> stop_steps_;  // as named to anybody
  std::map<Incarnation, RoundId> drained_;  // with the last round that each was told of
  std::map<Incarnation, std::set<std::string>> drained_ends_;  // that have been decided
  uint64_t numbers_ = 0;  // of processes, and of what they are told
  SimCoverage coverage_;
  std::deque<std::string> last_effects_;
  std::string failure_;
};

}  // namespace muster::simulation

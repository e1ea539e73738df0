// The words that agents and the rendezvous say to each other, as plain values. The wire form is
// proto/rendezvous.proto; translation happens in rendezvous/link/wire.cc alone.
//
// The conversation is one of states, not of commands: an agent reports what it is (AgentReport),
// the server answers what it should be doing (Directive). Each is a complete statement, so one that
// is lost, repeated or late does no harm: the next one says it all again. What the two sides decide
// with it: rendezvous/README.md.
//
// Pure values.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/failed_pair.h"
#include "proto/base/ids.h"

namespace muster {

// What happens to a running round when a node comes that could have a place in it.
enum class ScaleUp {
  kNow,         // the round ends for it, after a hold-off (rendezvous/core/membership_policy.h)
  kCheckpoint,  // as kNow, but right after a checkpoint has been committed, so that no step is lost
  kNever,       // it waits as a spare, and gets a place when the round ends for another reason
};

// What every node of a job must agree on. The first node to join defines it; a node that differs is
// refused with the name of the setting. Made from JobSpec, where the defaults are.
struct RendezvousSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  // The members are numbered by --node_rank and none may be missing (torchrun's static back end).
  bool is_static = false;
  absl::Duration join_timeout;
  absl::Duration last_call_timeout;
  // How long an ended job stays known, so that every agent can learn how it ended.
  absl::Duration close_timeout;
  // Grace between the first signal and SIGKILL; bounds how long a round may take to stop.
  absl::Duration shutdown_timeout;
  // How long workers run on while their agents and a server that knows them do not hear each other.
  absl::Duration orphan_timeout = absl::Minutes(10);
  ScaleUp scale_up = ScaleUp::kNow;
  int left_exit_code =
      0;  // of a node that is drained or replaced, unless a signal has told it to go
  friend bool operator==(const RendezvousSettings&, const RendezvousSettings&) = default;
};

// Membership leases, counted by the server from the receipt of a report: a node that others outlive
// by `duration` and `margin` is lost. Agents report at least every `renew_interval`.
struct LeaseSettings {
  absl::Duration duration = absl::Seconds(6);
  absl::Duration renew_interval = absl::Seconds(2);
  absl::Duration margin = absl::Milliseconds(300);
  friend bool operator==(const LeaseSettings&, const LeaseSettings&) = default;
};

// One node as it asks to enter a round.
struct NodeDescription {
  std::string name;     // host name, for people and for the order of ranks
  std::string address;  // numeric address at which the other nodes reach this one's workers
  int local_world_size = 1;
  std::string role = "default";
  std::optional<int> node_rank;   // --node_rank; an order hint unless the job is static
  int store_port = 0;             // reserved: MASTER_PORT if this node becomes node 0
  std::vector<int> worker_ports;  // reserved, one per local worker; [local_world_size]
  // Further numeric addresses of the node, from which its workers may connect to others.
  std::vector<std::string> other_addresses = {};
  friend bool operator==(const NodeDescription&, const NodeDescription&) = default;
};

// What every node is told alike: copies share one list, which never changes.
template <typename T>
class SharedList {
 public:
  SharedList() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a list is what it holds.
  SharedList(std::vector<T> list)
      : list_(std::make_shared<const std::vector<T>>(std::move(list))) {}
  SharedList(std::initializer_list<T> list) : SharedList(std::vector<T>(list)) {}

  const std::vector<T>& list() const {
    static const std::vector<T> kNone;
    return list_ == nullptr ? kNone : *list_;
  }
  auto begin() const { return list().begin(); }
  auto end() const { return list().end(); }
  size_t size() const { return list().size(); }
  bool empty() const { return list().empty(); }
  const T& front() const { return list().front(); }
  const T& operator[](size_t index) const { return list()[index]; }
  // Whether both share one list.
  bool IsSameAs(const SharedList& other) const { return list_ == other.list_; }

  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.IsSameAs(b) || a.list() == b.list();
  }

 private:
  // Assignments, outcomes, records and messages that hold it end in any order.
  std::shared_ptr<const std::vector<T>> list_;
};

// A worker that ended when it should not have.
struct WorkerFailure {
  Rank rank;
  LocalRank local_rank;
  NodeRank node_rank;
  std::string node_name;
  int pid = 0;
  int exit_code = 0;  // meaningless if `signal` is not 0
  int signal = 0;
  // The cgroup's oom_kill counter moved: by this worker (SIGKILL), else by another, as its helper.
  bool probably_out_of_memory = false;
  bool start_failed = false;  // the program could not be executed at all
  std::string message;        // the exception, or what is known
  // The call of another rank that ended this one, in words ("rank 3 called … where ranks 0 and 1
  // called …"). Empty if this rank is at fault or the cause is unknown.
  std::string ended_by;
  std::string error_file;   // path on its node; empty if none was written
  std::string last_output;  // last lines, at most a few KiB; empty if not captured
  // Wall clock of the failing node, milliseconds since 1970: for people only.
  int64_t unix_millis = 0;
  // Time from the failure to the sending of the report. The server orders all failures by it.
  absl::Duration age;
  friend bool operator==(const WorkerFailure&, const WorkerFailure&) = default;
};

// The exit code a shell would show for this failure: the worker's own, or 128 + signal.
int ExitCodeOf(const WorkerFailure& failure);
// The worker asked that the job is not restarted (kExitDoNotRestart).
bool ForbidsRestart(const WorkerFailure& failure);

// What an agent is doing.
enum class AgentPhase {
  kJoining,    // no workers alive; wants to be in the next round, unless `check` is set
  kRunning,    // workers of `round` are starting or running
  kFailed,     // a worker of `round` failed; the others are being stopped; see `failures`
  kSucceeded,  // every local worker of `round` ended with 0
  kStopped,    // workers of `round` were stopped because the job ends; see `failures`
  kLeaving,    // this node ends by itself (a signal, a broken guardian); workers are gone or being
               // stopped
};
absl::string_view ToString(AgentPhase phase);

// Why a node leaves by its own decision.
struct Departure {
  int signal = 0;         // the signal its launcher got; 0 if it was not a signal
  bool ends_job = false;  // an interrupt by a person ends the job; SIGTERM only takes this node out
  std::string reason;
  int exit_code = 0;  // of the node, and of a job that this ends; 0: what the signal says
  friend bool operator==(const Departure&, const Departure&) = default;
};

// The wish of a node that has been told to end and has some time left: that all ranks stop at one
// step first.
struct StopWish {
  int signal = 0;         // the signal that told it; 0 if it was not a signal
  bool drain_me = false;  // the job goes on without this node; else it ends
  std::string reason;
  friend bool operator==(const StopWish&, const StopWish&) = default;
};

// A node's check (--node_check) that has not passed: it runs, or has failed.
struct CheckState {
  std::string failure;  // how it failed last, with its last line; empty: it has not failed yet
  friend bool operator==(const CheckState&, const CheckState&) = default;
};

// What an agent remembers of its job, so that a server without its state does not count from zero.
struct JobPast {
  int attempts = 0;       // rounds that ran workers: the next one's restart_count is at least this
  int restarts_used = 0;  // of max_restarts
  friend bool operator==(const JobPast&, const JobPast&) = default;
};

// The complete state of one agent. Sent at each change and at each lease renewal.
struct AgentReport {
  uint64_t sequence = 0;  // grows with each report of this incarnation; older ones are ignored
  AgentPhase phase = AgentPhase::kJoining;
  Round round = kNoRound;  // the last round this agent was assigned
  Instance instance;       // 0 until the server has told it
  int num_nodes = 0;       // members of `round`; 0 before the first
  JobPast past;
  NodeDescription node;
  RendezvousSettings settings;
  std::vector<WorkerFailure> failures;  // of `round`
  std::vector<int> unkillable_pids;     // workers that outlived SIGKILL; the node leaves
  std::optional<Departure> departure;   // with kLeaving
  // Set once every local worker of `round` that has not ended has promised to begin no further step
  // before it knows the stop step (StopAt): the furthest that any of them has begun, -1 if none
  // has.
  std::optional<int64_t> stop_floor;
  std::optional<StopWish> stop_wish;  // while its workers run
  // Members of `round` that do not reach each other, where the job requires it; workers wait. From
  // node 0, which has heard from all; at most kMaxFailedPairs.
  std::vector<FailedPair> failed_pairs;
  std::optional<CheckState> check;  // with kJoining: the node wants no place until it has passed
  friend bool operator==(const AgentReport&, const AgentReport&) = default;
};

inline constexpr int kMaxOtherAddresses = 32;

// One member as every other member sees it.
struct Peer {
  std::string name;
  std::string address;
  int local_world_size = 1;
  std::vector<int> worker_ports;
  std::vector<std::string> other_addresses = {};  // told to node 0 alone
  friend bool operator==(const Peer&, const Peer&) = default;
};

// The members of a round, by node rank.
using Peers = SharedList<Peer>;

// The same without the other addresses, for those who need none.
Peers Brief(const Peers& peers);

// Assignments list every member only up to this many nodes: the list costs bytes times nodes
// squared.
inline constexpr int kMaxPeersInAssignment = 512;

// What a node gets from a completed round.
struct Assignment {
  Round round = kNoRound;
  Instance instance;
  NodeRank node_rank;
  int num_nodes = 0;
  Rank first_rank;
  int local_world_size = 0;
  int world_size = 0;
  int role_first_rank = 0;
  int role_world_size = 0;
  // Earlier rounds that ran workers: TORCHELASTIC_RESTART_COUNT and attempt_N. Never falls in the
  // life of a job, also when its server lost its state.
  int restart_count = 0;
  int restarts_used = 0;  // of max_restarts, so far
  std::string master_address;
  int master_port = 0;
  Peers peers;         // empty above kMaxPeersInAssignment
  std::string reason;  // why the round was complete now
  friend bool operator==(const Assignment&, const Assignment&) = default;
};

enum class StopCause { kRestart, kMembershipChange, kJobFailed };

// How a job ended, the same for every node.
struct JobOutcome {
  int exit_code = 0;
  std::string reason;                       // one sentence
  std::optional<WorkerFailure> root_cause;  // the first failing worker of all nodes
  SharedList<WorkerFailure> failures;       // of the last round, first to last
  friend bool operator==(const JobOutcome&, const JobOutcome&) = default;
};

// What an agent should be doing; each is complete and may come again.
struct Wait {
  std::string text;  // "waiting for 2 more of 4 nodes (node ranks 2 and 3)", for the status line
  friend bool operator==(const Wait&, const Wait&) = default;
};
struct RunRound {
  Assignment assignment;
  friend bool operator==(const RunRound&, const RunRound&) = default;
};
// Stop the workers of `round`, then join again (or, with kJobFailed, report kStopped and wait for
// EndJob).
struct StopRound {
  Round round = kNoRound;
  StopCause cause = StopCause::kRestart;
  std::string reason;
  // A member is gone: its peers' workers are probably stuck, so the grace is shorter.
  bool peer_lost = false;
  // The job's exit code (kJobFailed), for an agent whose server dies before it tells the outcome.
  int exit_code = 0;
  friend bool operator==(const StopRound&, const StopRound&) = default;
};
// All ranks of `round` stop at one step. While the step is open, each rank holds when it next asks
// whether to stop, and its agent reports a floor. Once the step is named, each rank leaves after
// it. No other step is ever named.
inline constexpr int64_t kStopStepOpen = -1;
struct StopAt {
  Round round = kNoRound;
  int64_t step = kStopStepOpen;
  std::string reason;
  friend bool operator==(const StopAt&, const StopAt&) = default;
};
// The job has ended, or has for this node, which was drained.
struct EndJob {
  JobOutcome outcome;
  friend bool operator==(const EndJob&, const EndJob&) = default;
};
// The report was not accepted.
//
//   kAborted:            what the agent knows is of the past: stop its workers, and join again
//   kUnavailable:        the server has no record of the agent's instance and leaves its workers
//                        alone: run on, report again; or it cannot let a newcomer in as yet
//   kFailedPrecondition: the job has ended
//   any other:           wrong settings, another job's server, or no room for one more job. An
//                        agent that was never accepted ends; an accepted one takes it for a
//                        stranger's answer and runs on
struct Refuse {
  absl::Status status;
  friend bool operator==(const Refuse&, const Refuse&) = default;
};

using DirectiveBody = std::variant<Wait, RunRound, StopRound, EndJob, Refuse, StopAt>;

struct Directive {
  ServerTerm term;
  Instance instance;
  uint64_t revision = 0;         // grows with each directive to this agent; older ones are ignored
  uint64_t report_sequence = 0;  // the newest report that this answers
  DirectiveBody body;
  friend bool operator==(const Directive&, const Directive&) = default;
};

// One line for logs, transcripts and test messages.
std::string ToString(const AgentReport& report);
std::string ToString(const DirectiveBody& body);
std::string ToString(const WorkerFailure& failure);

}  // namespace muster

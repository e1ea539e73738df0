// The jobs of one server: which core and which store a message belongs to. Pure.
//
// An embedded server has one job and refuses others by name; musterd has many, and refuses the run
// id `none`.
//
// Threads: compatible; one caller at a time (RendezvousServer calls it on its loop thread).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "rendezvous/core/orphan_rounds.h"
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/store_core.h"

namespace muster::rendezvous {

// A job of a user. Two users of one musterd never see each other's jobs.
struct JobKey {
  std::string owner;  // name of the token's owner; empty for an embedded server
  std::string run_id;
  friend auto operator<=>(const JobKey&, const JobKey&) = default;
  friend bool operator==(const JobKey&, const JobKey&) = default;
};

// A participant of a job: an agent, or a person who asks.
struct AgentKey {
  JobKey job;
  Incarnation agent;
  friend auto operator<=>(const AgentKey&, const AgentKey&) = default;
  friend bool operator==(const AgentKey&, const AgentKey&) = default;
};

// A job as it is kept on disk.
struct KeptJob {
  JobKey key;
  Instance instance;
  JobRecord record;
};

// What to keep of a job from now on. `round` is left out if it has not changed.
struct KeepJob {
  Instance instance;
  std::optional<RoundRecord> round;
  ProgressRecord progress;
  bool is_dropped = false;  // nothing of it is kept
};

// The number of ended instances of one user that are remembered, each for its close_timeout.
inline constexpr size_t kMaxEndedJobs = 1000;

struct JobTableOptions {
  // Higher than that of any server before it at this endpoint: TermOfStart. Directives are compared
  // by (term, revision), and instances are numbered by term, so that neither is ever used again.
  ServerTerm term;
  LeaseSettings lease;
  std::string only_run_id;  // not empty: an embedded server of this one job
  int max_jobs = 10000;
  // No round completes before this instant, so that agents of an earlier server at this endpoint
  // can report what they run: a lease after the start if there may have been one.
  MonoTime young_until;
  // Node names of a single-job server, by --node_rank; empty: unknown. A node with such a name that
  // arrives after the end of the job is told the outcome and does not begin another job.
  std::vector<std::string> node_names;
  Incarnation host;  // CoreOptions
  // A KeepJob comes with each change of a job's record.
  bool keeps_records = false;
  // The first term whose records are all here: an unknown job that began since then has ended. 0:
  // `term`.
  ServerTerm first_term;
};

// The term of a server that starts at `unix_millis` by the wall clock, and has no record of
// another.
ServerTerm TermOfStart(int64_t unix_millis);
// The first of the 2^20 instances that a term has for itself.
Instance FirstInstanceOf(ServerTerm term);

class JobTable {
 public:
  explicit JobTable(JobTableOptions options);

  struct JobEffect {
    JobKey job;
    std::variant<SendDirective, SendStoreReply, SendAnswer, Announce, KeepJob> effect;
    // Follows from a record, and leaves when that is durable (effect_gate.h). The store's answers
    // do not: what is in it dies with the server anyway.
    bool waits_for_record = true;
  };

  // Continues the jobs that this server kept before it was restarted. Call it once, before anything
  // else; the term must be higher than before. Keys in the store of a round are lost: requests for
  // them are answered with kUnavailable until the next round.
  void Restore(std::vector<KeptJob> jobs, MonoTime now);

  // A message of an agent. A job that is not known begins with its first joining report; one that
  // has ended starts over as the next instance once each of its agents has been told the end.
  // Workers of an instance that this server has no record of are left alone: orphan_rounds.h.
  //
  // Errors (in a Refuse):
  //   kInvalidArgument:    a run id that this server does not serve
  //   kAborted:            another instance than the current: join again
  //   kUnavailable:        an instance of which there is no record: run on
  //   kFailedPrecondition: the instance has ended
  //   kResourceExhausted:  max_jobs
  std::vector<JobEffect> OnReport(const JobKey& job, Incarnation from, const AgentReport& report,
                                  MonoTime now);
  // Answered with kAborted unless the agent is a member of the job's round; commits of checkpoints
  // as CheckCommit says, and with yes for the last round's members of a job that has ended.
  std::vector<JobEffect> OnStoreRequest(const JobKey& job, Incarnation from,
                                        const StoreRequest& request, MonoTime now);
  // A person asks; answered by one SendAnswer to `from`.
  std::vector<JobEffect> OnStopRequest(const JobKey& job, Incarnation from,
                                       const StopRequest& request, MonoTime now);
  // Somebody who can know says that an agent has ended; answered by one SendAnswer to `event.from`.
  std::vector<JobEffect> OnAgentEnded(const JobKey& job, AgentEnded event, MonoTime now);
  // The hang watch has given a verdict.
  std::vector<JobEffect> OnNodesAtFault(const JobKey& job, NodesAtFault event, MonoTime now);
  std::vector<JobEffect> OnDisconnect(const JobKey& job, Incarnation from, MonoTime now);
  // A node that came after the end of the host's own instance is told nothing: it is about to meet
  // the next server at this endpoint, or runs into its time-out.
  std::vector<JobEffect> OnHostLeaving(const Departure& departure, const std::string& host_name,
                                       MonoTime now);
  std::vector<JobEffect> Tick(MonoTime now);

  // The agent of the process that this server lives in, before it reports.
  void SetHost(Incarnation host) { options_.host = host; }
  Incarnation host() const { return options_.host; }

  MonoTime NextDeadline() const;
  size_t size() const { return jobs_.size(); }
  // nullptr if there is no such job. Valid until the next call that is not const.
  const JobState* FindState(const JobKey& job) const;
  // How the last instance of a job ended, if it is over and still known; else nullptr.
  const JobOutcome* FindOutcome(const JobKey& job) const;
  // The jobs of one user.
  std::vector<JobKey> JobsOf(const std::string& owner) const;
  // The first broken invariant of any job; empty if all hold.
  std::string CheckInvariants() const;

 private:
  struct Job {
    Instance instance;
    std::unique_ptr<RendezvousCore> core;
    StoreCore store;
    std::vector<Incarnation> store_members;  // of the store's round
    Round store_round = kNoRound;
    bool is_store_lost = false;  // of store_round, with the server's earlier life
    MonoTime deadline = MonoTime::InfiniteFuture();
  };
  using Jobs = absl::btree_map<JobKey, Job>;

  // An instance that is over, for agents that were away when it ended.
  struct EndedJob {
    JobKey key;
    Instance instance;
    JobOutcome outcome;
    MonoTime known_until;
    Round round;
    // The members of that round, whose workers may still be ending, and saving.
    absl::btree_set<Incarnation> members;
  };

  // The answer to a report that reaches no job; none if there is one, made now if need be.
  std::optional<DirectiveBody> AnswerWithoutJob(const JobKey& key, Incarnation from,
                                                const AgentReport& report, MonoTime now,
                                                std::vector<JobEffect>& out);
  // The answer to one that knows an instance which is not the job's current one.
  DirectiveBody AnswerOtherInstance(const JobKey& key, Incarnation from, const AgentReport& report,
                                    MonoTime now, std::vector<JobEffect>& out);
  DirectiveBody AnswerOrphan(const JobKey& key, Incarnation from, const AgentReport& report,
                             MonoTime now, std::vector<JobEffect>& out);
  bool IsOurs(Instance instance) const;
  absl::Status CheckServes(const JobKey& key) const;
  // The outcome that a newcomer of that name missed; nullptr if it is in time.
  const JobOutcome* FindEndFor(const JobKey& key, const std::string& node_name, MonoTime now) const;
  absl::Status Begin(const JobKey& key, const AgentReport& report, MonoTime now);
  // Whether the agent is not a member of any instance: it reports none, or one that was put off.
  bool IsNewcomer(const JobKey& key, const AgentReport& report) const;
  CoreOptions OptionsFor(Instance instance) const;
  absl::Status NoSuchJob(const JobKey& key) const;
  static KeepJob KeepOf(const Job& job, bool is_new_round);
  void StepCore(Jobs::iterator job, const Event& event, MonoTime now, std::vector<JobEffect>& out);
  void StartStoreRound(Job& job, const JobKey& key, MonoTime now, std::vector<JobEffect>& out);
  // Keeps the index of deadlines after a step.
  void Reschedule(Jobs::iterator job);
  void Erase(Jobs::iterator job, MonoTime now);
  // Removes a job, of whose end nothing is remembered.
  void Drop(Jobs::iterator job);
  // The same of one that a later life of the server would otherwise go on with.
  void DropRecord(Jobs::iterator job, std::vector<JobEffect>& out);
  // Drops a job without a round yet, if its newcomers have to wait for a round of which this server
  // has no record; they begin it again later.
  void PutOff(Jobs::iterator job);
  void RememberEnd(EndedJob ended, MonoTime now);
  // Those of the job's owner, whose jobs the caller looks through; oldest first.
  const std::deque<EndedJob>& EndedOf(const JobKey& key) const;
  // The same of an instance that had no record here, or was put off for one; null: of none.
  void RememberEndWithoutARecord(const JobKey& key, Instance instance, const JobOutcome& outcome,
                                 const AgentReport& report, MonoTime now);
  // Whether a member of the last round of an ended job, not formed again since, may publish.
  bool MayPublishAfterEnd(const JobKey& key, Incarnation from, const StoreRequest& request) const;
  JobEffect Stamp(const JobKey& key, SendDirective effect);

  // Constant after construction, but for the host.
  JobTableOptions options_;

  // Loop thread only.
  Instance next_instance_;
  // Counts directives of all jobs: an agent that meets a new instance sees it grow.
  uint64_t next_revision_ = 1;
  Jobs jobs_;
  absl::btree_map<JobKey, OrphanRounds> orphans_;
  absl::btree_set<std::pair<MonoTime, JobKey>> deadlines_;
  // By owner, so that nobody's ends take the place of another's; oldest first, at most
  // kMaxEndedJobs of each.
  absl::btree_map<std::string, std::deque<EndedJob>> ended_;
};

}  // namespace muster::rendezvous

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
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/store_core.h"

namespace muster::rendezvous {

// Which job of which user. Two users of one musterd never see each other's jobs.
struct JobKey {
  std::string owner;  // name of the token's owner; empty for an embedded server
  std::string run_id;
  friend auto operator<=>(const JobKey&, const JobKey&) = default;
  friend bool operator==(const JobKey&, const JobKey&) = default;
};

// How many instances that are over are remembered, each for its close_timeout.
inline constexpr size_t kMaxEndedJobs = 1000;

struct JobTableOptions {
  ServerTerm term;
  LeaseSettings lease;
  std::string only_run_id;  // not empty: an embedded server of this one job
  Instance first_instance{1};
  int max_jobs = 10000;
};

class JobTable {
 public:
  explicit JobTable(JobTableOptions options);

  struct JobEffect {
    JobKey job;
    std::variant<SendDirective, SendStoreReply, Announce> effect;
  };

  // A message of an agent. A job that is not known begins with its first joining report; one that
  // has ended begins anew as the next instance once each of its agents has been told the end.
  //
  // Errors (in a Refuse): kInvalidArgument: a run id that this server does not serve; kAborted:
  // another instance than the current, join again; kFailedPrecondition: the instance has ended;
  // kResourceExhausted: max_jobs.
  std::vector<JobEffect> OnReport(const JobKey& job, Incarnation from, const AgentReport& report,
                                  MonoTime now);
  // Answered with kAborted unless the agent is a member of the job's round.
  std::vector<JobEffect> OnStoreRequest(const JobKey& job, Incarnation from,
                                        const StoreRequest& request, MonoTime now);
  std::vector<JobEffect> OnDisconnect(const JobKey& job, Incarnation from, MonoTime now);
  std::vector<JobEffect> OnHostLeaving(const Departure& departure, const std::string& host_name,
                                       MonoTime now);
  std::vector<JobEffect> Tick(MonoTime now);

  MonoTime NextDeadline() const;
  size_t size() const { return jobs_.size(); }
  // nullptr if there is no such job. Valid until the next call that is not const.
  const JobState* FindState(const JobKey& job) const;
  // The first broken invariant of any job; empty if all hold.
  std::string CheckInvariants() const;

 private:
  struct Job {
    Instance instance;
    std::unique_ptr<RendezvousCore> core;
    StoreCore store;
    std::vector<Incarnation> store_members;  // of the store's round
    Round store_round = kNoRound;
    MonoTime deadline = MonoTime::InfiniteFuture();
  };
  using Jobs = absl::btree_map<JobKey, Job>;

  // An instance that is over, for agents that were away when it ended.
  struct EndedJob {
    JobKey key;
    Instance instance;
    JobOutcome outcome;
    MonoTime known_until;
  };

  // The answer to a report that reaches no job; none if there is one, made now if need be.
  std::optional<DirectiveBody> AnswerWithoutJob(const JobKey& key, Incarnation from,
                                                const AgentReport& report, MonoTime now);
  absl::Status Begin(const JobKey& key, const AgentReport& report);
  void StepCore(Jobs::iterator job, const Event& event, MonoTime now, std::vector<JobEffect>& out);
  void StartStoreRound(Job& job, const JobKey& key, MonoTime now, std::vector<JobEffect>& out);
  // Keeps the index of deadlines after a step.
  void Reschedule(Jobs::iterator job);
  void Erase(Jobs::iterator job, MonoTime now);
  JobEffect Stamp(const JobKey& key, SendDirective effect);

  // Constant after construction.
  JobTableOptions options_;

  // Loop thread only.
  Instance next_instance_;
  uint64_t next_revision_ =
      1;  // of directives of all jobs: an agent that meets a new instance sees it grow
  Jobs jobs_;
  absl::btree_set<std::pair<MonoTime, JobKey>> deadlines_;
  std::deque<EndedJob> ended_;  // oldest first, at most kMaxEndedJobs
};

}  // namespace muster::rendezvous

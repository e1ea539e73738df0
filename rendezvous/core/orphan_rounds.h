// Rounds whose workers run although this server has no record of them: an earlier life of it formed
// them and died, and its state with it. Agents say what they run, and that is all that is known.
//
// Such workers are left alone for the orphan time-out, counted from the first that is heard of: no
// new instance of the job is begun meanwhile, because two rounds of one job must not run together.
// It ends sooner when all members have succeeded (so has the job), or when one has failed or left
// (the others wait for it in vain), or holds for a stop step that is forgotten: then all are told
// to join a new instance.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

class OrphanRounds {
 public:
  // What follows from a report of an instance that is not this server's.
  struct Answer {
    DirectiveBody body;
    bool is_first = false;    // nothing was known of the round before: worth a line in the log
    bool is_outcome = false;  // `body` is an EndJob, and the instance has ended with it
  };
  // `name` of the job, for messages.
  Answer OnReport(const std::string& name, Incarnation from, const AgentReport& report,
                  MonoTime now);

  // What a newcomer is told while workers of the round are known to run, or to be stopping; none
  // when nothing is owed to them any more.
  std::optional<std::string> WhyNewcomersWait(const LeaseSettings& lease, MonoTime now) const;

  // A member that was told to join anew, and says so before it has stopped its workers (then it is
  // waited for), or that it has. False if it is no member.
  bool OnStopping(Incarnation from, MonoTime now);
  void OnStopped(Incarnation from) { members_.erase(from); }

  // Newcomers that waited for the round learn its outcome as a spare does; without, they would
  // begin the job again. What one is told: nothing before there is an outcome, or if it did not
  // wait.
  void NoteWaiting(Incarnation newcomer) {
    if (newcomers_.size() < kMaxFormerNodes) newcomers_.insert(newcomer);
  }
  const JobOutcome* OutcomeFor(Incarnation newcomer) const {
    return outcome_ && newcomers_.contains(newcomer) ? &*outcome_ : nullptr;
  }

  // The instance that newcomers had begun before the round was heard of. It had no round, and they
  // are told to wait; it begins again under its number when their turn has come, so that they are
  // newcomers still, and without those who were drained.
  struct Begun {
    Instance instance;  // 0: none
    absl::btree_map<Incarnation, DrainedNode> drained;
  };
  void PutOff(Begun begun) { put_off_ = std::move(begun); }
  Instance put_off() const { return put_off_.instance; }
  Begun TakePutOff() { return std::exchange(put_off_, {}); }

  // Nobody has been heard for so long that the workers have been ended by their own agents.
  bool IsForgotten(MonoTime now) const { return now - last_heard_ > orphan_timeout_; }

 private:
  struct Member {
    std::string name;
    MonoTime heard;
    bool succeeded = false;
  };

  Answer Decide(const std::string& name, Incarnation from, const AgentReport& report, MonoTime now);
  void Start(const AgentReport& report, MonoTime now);
  bool HaveAllSucceeded() const;
  bool IsAnyRunning(MonoTime now) const;
  std::string InWordsOf(const std::string& name) const;

  Instance instance_;
  Round round_ = kNoRound;
  int num_nodes_ = 0;
  absl::Duration orphan_timeout_;
  MonoTime first_seen_;
  MonoTime last_heard_;
  absl::btree_map<Incarnation, Member> members_;
  absl::btree_set<Incarnation> succeeded_;  // also of those that have left since
  absl::btree_set<Incarnation> newcomers_;
  std::optional<JobOutcome> outcome_;
  Begun put_off_;
  std::string over_;  // why the round cannot go on; empty: it can
};

}  // namespace muster::rendezvous

// Rounds whose workers still run although this server has no record of them, because it formed them
// before a restart that lost its state. Only what their agents report is known of them.
//
// Such workers are left alone for the orphan time-out, counted from the first report. No new
// instance of the job begins meanwhile, because two rounds of one job must not run together. The
// wait ends sooner when all members have succeeded (so has the job). When a member has failed or
// left (the others wait for it in vain), or holds for a forgotten stop step, all are told to join a
// new instance.
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
  // The answer to a report of an instance that this server does not know.
  struct Answer {
    DirectiveBody body;
    bool is_first = false;    // nothing was known of the round before: worth a line in the log
    bool is_outcome = false;  // `body` is an EndJob, and the instance has ended with it
  };
  // `name` of the job, for messages.
  Answer OnReport(const std::string& name, Incarnation from, const AgentReport& report,
                  MonoTime now);

  // What a newcomer that says `instance` is told while it may not join; nothing once it may. It
  // waits for the round, and learns its outcome as a spare does, as those do whose instance was put
  // off for it; otherwise they would begin the job again.
  std::optional<DirectiveBody> OnNewcomer(Incarnation from, Instance instance,
                                          const LeaseSettings& lease, MonoTime now);
  // Why a newcomer has to wait while workers of the round are known to run or to be stopping;
  // nothing once it may join.
  std::optional<std::string> WhyNewcomersWait(const LeaseSettings& lease, MonoTime now) const;

  // A member that was told to join again reports that it is still stopping its workers, and is
  // waited for. False if it is not a member.
  bool OnStopping(Incarnation from, MonoTime now);

  // A member that is told how the round has ended: it is waited for until it has stopped, too.
  void NoteEnding(Incarnation from, const AgentReport& report, MonoTime now);

  const std::optional<JobOutcome>& outcome() const { return outcome_; }

  // The instance that newcomers had begun before the first report of the orphan round. It had no
  // round, and they are told to wait. It begins again under its number when their turn has come, so
  // that they still count as newcomers, and without the nodes that were drained. Once there is an
  // outcome it has ended with that, and does not begin again.
  struct Begun {
    Instance instance;  // 0: none
    absl::btree_map<Incarnation, DrainedNode> drained;
  };
  void PutOff(Begun begun) { put_off_ = std::move(begun); }
  Instance put_off() const { return put_off_.instance; }
  Begun TakePutOff() { return std::exchange(put_off_, {}); }

  // Whether the silence is so long that agents have ended their workers by themselves.
  bool IsForgotten(MonoTime now) const { return now - last_heard_ > orphan_timeout_; }

 private:
  struct Member {
    std::string name;
    MonoTime heard;
    bool succeeded = false;
  };

  Answer Decide(const std::string& name, Incarnation from, const AgentReport& report, MonoTime now);
  void Start(const AgentReport& report, MonoTime now);
  void NoteWaiting(Incarnation newcomer) {
    if (newcomers_.size() < kMaxFormerNodes) newcomers_.insert(newcomer);
  }
  void NoteMember(Incarnation from, const AgentReport& report, MonoTime now);
  // The end of a round whose time is up and whose workers run nowhere.
  Answer EndUnheard(const std::string& name) const;
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
  // How many of them say which number of nodes of the round: that of one may be a lie.
  absl::btree_map<int, int> succeeded_by_size_;
  absl::btree_set<Incarnation> newcomers_;  // that waited for the round
  std::optional<JobOutcome> outcome_;
  Begun put_off_;
  std::string over_;  // why the round cannot go on; empty: it can
};

}  // namespace muster::rendezvous

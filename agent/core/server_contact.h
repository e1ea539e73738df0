// Whether a node and its rendezvous hear each other: which of them was heard last, which reports
// are unanswered, and what follows from silence.
//
// Threads: compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agent/core/turn.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class ServerContact {
 public:
  // The wait for the first answer begins.
  void Begin(MonoTime now) { last_heard_ = now; }
  void Change(const LinkChanged& event);
  // From now on this node counts by the server's lease, and says so if it has another itself.
  void TakeLease(const LeaseTold& event, Turn& turn);
  // False for a directive that is no newer than another that has come.
  bool Hear(const Directive& directive);
  // The server knows the agent's instance again, or for the first time.
  void NoteAttended(Turn& turn);
  // The server does not serve us; said once for each `event`, not at each try.
  void NoteUnattended(const std::string& event, const std::string& why, Turn& turn);
  // It answers, although it does not serve us.
  void NoteAlive(MonoTime now) { last_heard_ = now; }
  // The number of the report that is sent at `now`.
  uint64_t NumberReport(MonoTime now);

  // When a report that says nothing new is due; InfiniteFuture() without a link. `lease` is the
  // node's own.
  MonoTime NextReport(const LeaseSettings& lease) const;
  // See AgentCore::MayPublish.
  absl::Status MayPublish(const AgentCoreOptions& options, int num_nodes, MonoTime now) const;
  // When a server that is not heard until then is given up. `awaits_outcome`: no worker is at
  // stake, and only the outcome is waited for.
  MonoTime Deadline(const AgentCoreOptions& options, bool awaits_outcome) const;
  // What the server says of an agent that it once accepted, and cannot mean it.
  bool IsStranger(const Refuse& refuse) const;
  // "no answer for 12s (connection refused)"
  std::string Silence(MonoTime now) const;

  bool is_up() const { return is_up_; }
  bool is_serving() const { return is_up_ && unattended_.empty(); }
  bool was_heard() const { return was_heard_; }
  bool was_accepted() const { return was_accepted_; }
  const std::string& detail() const { return detail_; }
  ServerTerm term() const { return term_; }

 private:
  // The lease to count by, with the margin of `own`.
  LeaseSettings LeaseByServer(const LeaseSettings& own) const;

  bool is_up_ = false;
  std::optional<LeaseTold> lease_;  // none: the node's own
  std::string detail_;              // of the link, for people
  bool was_heard_ = false;          // at least one directive has come
  bool was_accepted_ = false;       // and one at least was no refusal: from now on none is fatal
  std::string unattended_;  // why the server does not serve us now, as announced; empty: it does
  MonoTime last_heard_;     // of a server that serves us; before the first directive: the start
  MonoTime last_sent_;
  // Reports without an answer yet, with when they were made; at most kMaxUnanswered.
  std::deque<std::pair<uint64_t, MonoTime>> unanswered_;
  MonoTime answered_;  // when the newest report that has been answered was made
  ServerTerm term_;    // the newest that has been heard of
  uint64_t last_revision_ = 0;
  uint64_t sequence_ = 0;  // of the newest report
};

}  // namespace muster::agent

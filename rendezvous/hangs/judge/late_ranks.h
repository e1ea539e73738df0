// Finds ranks that are slow, and not hung, in programs that mark nothing: a rank that comes last to
// nearly every collective, by a multiple of what lies between the others. It is told once, and
// never judged.
//
// PyTorch's recorder has the time at which a rank called each collective, by its node's clock.
// Clocks of nodes differ, so a node says how long ago it was as it answers a question of the
// server, which knows when it asked and when it was answered: half of that is the error.
//
//   summaries of all nodes that measure: a new window -> AskArrivals to them -> all have answered,
//     or kTimeForArrivals -> LateRanks -> SaySlow to all
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/judge/watched_node.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

// The answer of a node, on the clock of the one who asked.
struct ArrivalsAt {
  MonoTime answered_at;
  absl::Duration error;  // of that, either way; zero on the node itself
  std::vector<GroupArrivals> groups;
};

// Judges one window after the other.
class LateRanks {
 public:
  // Collectives of a group that are compared, the last ones; fewer than kRowsMin say nothing.
  static constexpr size_t kRows = kArrivalRowsMax;
  static constexpr size_t kRowsMin = 20;

  void StartRound() { *this = LateRanks(); }
  // The words, if a rank has been late in this window and the one before it and has not been told.
  std::optional<std::string> OnWindow(const std::vector<ArrivalsAt>& nodes);

 private:
  absl::btree_set<int> late_before_;
  absl::btree_set<int> told_;
};

class LateWatch {
 public:
  using Orders = std::vector<OrderTo>;
  static constexpr absl::Duration kTimeForArrivals = absl::Seconds(3);

  void StartRound(Round round);
  // A member that has measured windows, `window` of them.
  Orders OnSummary(Incarnation from, int64_t window, MonoTime now);
  // A member's answer; one that nobody waits for changes nothing. The returned words are for all.
  std::optional<std::string> OnWord(Incarnation from, NodeArrivals word, MonoTime now);
  std::optional<std::string> Tick(MonoTime now);
  MonoTime NextDeadline() const;

 private:
  std::optional<std::string> Conclude();

  Round round_ = kNoRound;
  uint64_t question_ = 0;
  absl::btree_map<Incarnation, int64_t> windows_;
  absl::btree_set<Incarnation> has_news_;
  absl::btree_set<Incarnation> awaited_;
  MonoTime asked_at_;
  std::vector<ArrivalsAt> answers_;
  LateRanks late_ranks_;
};

}  // namespace muster::hangs

// Finds ranks that are slow, and not hung: the others wait for them. They are told, and never
// judged. Windows are compared once all nodes that measure some have a new one. Two things tell:
//
//   marks    of a program's steps. A rank's own time of a step is what it does not spend waiting
//            for others. It is measured by each node (PaceMeter) and compared over all ranks, since
//            all of them take the same time for a step: only the waiting tells whose it is.
//   records  of PyTorch, which has the time at which a rank called each collective, by its node's
//            clock. A rank is slow that comes last to nearly every one, by a multiple of what lies
//            between the others. Clocks of nodes differ, so a node says how long ago it was as it
//            answers a question of the judge, which knows when it asked and when it was answered:
//            half of that is the error.
//
// Pure. Thread-compatible: one caller at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/silence_meter.h"
#include "rendezvous/hangs/judge/node_table.h"
#include "rendezvous/hangs/judge/poll.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

// A window is as long as kPaceSteps steps take, and at least this.
inline constexpr absl::Duration kPaceWindow = absl::Seconds(10);
inline constexpr int64_t kPaceSteps = 30;

// The pace of a rank in one window.
struct RankPace {
  int rank = 0;
  absl::Duration own;  // per step
  friend bool operator==(const RankPace&, const RankPace&) = default;
};

class PaceMeter {
 public:
  void StartRound() { *this = PaceMeter(); }

  // What the ranks of this node do now. True if a window has ended, and paces() are new. None
  // counts in which a rank was in another phase than a step's, or in which nobody looked for a
  // while.
  bool Listen(const std::vector<Pulse>& pulses, MonoTime now);

  int64_t num_windows() const { return num_windows_; }
  const std::vector<RankPace>& paces() const { return paces_; }

 private:
  struct Start {
    int64_t num_steps = 0;
    absl::Duration waited;
  };
  void Begin(const std::vector<Pulse>& pulses, MonoTime now);

  MonoTime began_;
  MonoTime last_;
  absl::btree_map<int, Start> starts_;  // by rank; none: no window has begun
  int64_t num_windows_ = 0;
  std::vector<RankPace> paces_;
};

// The records of a node, on the clock of the one who asked.
struct ArrivalsAt {
  MonoTime answered_at;
  absl::Duration error;  // of that, either way; zero on the node itself
  std::vector<GroupArrivals> groups;
};

class Stragglers {
 public:
  using Orders = std::vector<OrderTo>;
  static constexpr absl::Duration kTimeForArrivals = absl::Seconds(3);

  struct Change {
    std::vector<int> slow;  // ranks; empty: nobody any more
    std::string text;
  };

  void StartRound() { *this = Stragglers(); }

  // `nodes` has taken a summary of `from`.
  Orders OnSummary(const NodeTable& nodes, Incarnation from, MonoTime now);
  // A member's answer; one that nobody waits for changes nothing.
  void OnWord(Incarnation from, NodeArrivals word, MonoTime now);
  Orders Tick(const NodeTable& nodes, MonoTime now);
  MonoTime NextDeadline() const { return poll_.NextDeadline(); }

  // A window of all ranks that are known, by rank. Something if others are slow now than before:
  // those whose own time was a tenth above the median and well beyond what is usual between ranks,
  // in three of their last five windows.
  //
  // Source: the deviation is measured by the median of deviations, as Hampel proposes; of two ranks
  //         the faster is the measure.
  std::optional<Change> OnPaces(const std::vector<RankPace>& paces);
  // A window of all nodes. Something, once, of a rank that is late in it and in the one before.
  // Fewer than twenty collectives that all have in common say nothing.
  std::optional<Change> OnArrivals(const std::vector<ArrivalsAt>& nodes);

 private:
  // A rank is slow from so many slow windows on, among those with a bit in `seen`, and until they
  // have become so few.
  struct Rule {
    uint32_t seen;
    int from;
    int until;
  };
  static constexpr Rule kMarks = {.seen = 0x1f, .from = 3, .until = 1};
  static constexpr Rule kRecords = {.seen = 0x3, .from = 2, .until = -1};  // for good
  struct History {
    uint32_t windows = 0;  // bit 0: the last one; 1: it was slow
    bool is_slow = false;
    // Whether it is slow now and was not before, or the other way round.
    bool Add(bool was_slow, const Rule& rule);
  };
  // The windows of the members that measure some.
  struct Windows {
    absl::btree_map<Incarnation, int64_t> last;
    absl::btree_set<Incarnation> are_new;  // not compared yet

    // `window`: the last of `from`; 0: none.
    void Note(Incarnation from, int64_t window);
    bool AreAllNew() const { return !last.empty() && are_new.size() == last.size(); }
  };

  Windows paces_;
  absl::btree_map<int, History> by_marks_;  // by rank
  Windows arrivals_;
  Poll poll_;  // of those that measure arrivals
  MonoTime asked_at_;
  std::vector<ArrivalsAt> answers_;
  absl::btree_map<int, History> by_records_;
};

}  // namespace muster::hangs

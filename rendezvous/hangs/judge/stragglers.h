// Finds ranks that are slow, and not hung: their steps take them longer, while the others wait for
// them.
//
// A rank's own time of a step is what it does not spend waiting for others. It is measured by each
// node over windows (PaceMeter) and compared over all ranks (Stragglers), since all of them take
// the same time for a step: only the waiting tells whose it is.
//
// Pure. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/silence_meter.h"

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

class Stragglers {
 public:
  struct Change {
    std::vector<int> slow;  // ranks; empty: nobody any more
    std::string text;
  };

  void StartRound() { *this = Stragglers(); }

  // A window of all ranks that are known, by rank. Something if others are slow now than before:
  // those whose own time was a tenth above the median and well beyond what is usual between ranks,
  // in three of their last five windows.
  //
  // Source: the deviation is measured by the median of deviations, as Hampel proposes; of two ranks
  //         the faster is the measure.
  std::optional<Change> OnWindow(const std::vector<RankPace>& paces);

 private:
  struct History {
    uint32_t windows = 0;  // bit 0: the last one; 1: it was slow
    bool is_slow = false;
  };
  absl::btree_map<int, History> by_rank_;
};

}  // namespace muster::hangs

// How long each rank of a node has been silent, as its agent watches it.
//
// Every second or so it is told how far each rank has come (Listen). Silence is what was watched of
// it: the time between two calls of Listen counts at most kGapMax. So a stopped agent, a suspended
// machine or a clock that jumps make nobody silent. Nor does a pulse that is old: a rank may have
// moved since. Of a silence that ended well the meter learns, but for that of a rank that waited
// for others: how long they took is learned from them.
//
// Pure. Thread-compatible: one caller at a time (agent/watch/local_ranks.h calls it on the loop).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "proto/base/mono_time.h"
#include "proto/base/progress_board.h"
#include "rendezvous/hangs/evidence/silence_history.h"

namespace muster::hangs {

inline constexpr absl::Duration kWatchInterval = absl::Seconds(1);
inline constexpr absl::Duration kGapMax = absl::Seconds(2);
// A shorter silence is not looked into.
inline constexpr absl::Duration kSuspiciousSilence = absl::Seconds(5);

// How far a rank has come, cheap to read.
struct Pulse {
  int rank = 0;
  bool is_told = false;  // it writes to its board; else nothing is known of it
  uint64_t token = 0;    // changes with everything that it does
  Phase phase = Phase::kStarting;
  int64_t num_steps = 0;        // that it has marked so far
  bool has_operations = false;  // it has called a communicator
  bool is_waiting = false;      // for an operation, and so for others
  absl::Duration waited;        // for operations, all in all
  absl::Duration age;           // of what it tells: PyTorch is asked every now and then
};

struct RankSilence {
  int rank = 0;
  WatchPhase phase = WatchPhase::kStep;
  absl::Duration silent_for;
  friend bool operator==(const RankSilence&, const RankSilence&) = default;
};

class SilenceMeter {
 public:
  // Other processes; what was learned stays.
  void StartRound();

  // `of_mute`: silences of ranks whose pulses tell nothing, as others have measured them
  // (gatherings.h); they count until the next call.
  void Listen(const std::vector<Pulse>& pulses, MonoTime now,
              const std::vector<RankSilence>& of_mute = {});
  // The process of `rank` has ended as it should: so has its silence, if it was at its end.
  void Finish(int rank);

  // Ranks whose pulses tell nothing, and how long they were watched.
  const absl::btree_map<int, absl::Duration>& mute() const { return mute_; }
  // Zero if nothing is known of it.
  absl::Duration SilenceOf(int rank) const;
  // The silences of all ranks, sorted by rank.
  std::vector<RankSilence> Silences() const;
  // So long, or longer, nothing new is known of some rank.
  bool IsSomebodySilent(absl::Duration least) const;
  LearnedSilences Learned() const { return history_.Learned(); }

 private:
  struct RankState {
    Pulse pulse;
    WatchPhase phase = WatchPhase::kStart;
    absl::Duration silent_for;
    absl::Duration watched_for;  // since it has moved last, as far as is known
    bool has_waited = false;     // in this silence
    bool is_mute = false;        // others tell how long it is silent
  };

  static WatchPhase PhaseOf(const Pulse& pulse);
  void Hear(const Pulse& pulse, absl::Duration gap);

  SilenceHistory history_;
  std::optional<MonoTime> last_listened_;
  absl::btree_map<int, RankState> ranks_;
  absl::btree_map<int, absl::Duration> mute_;
};

}  // namespace muster::hangs

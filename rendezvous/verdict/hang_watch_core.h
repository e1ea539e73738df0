// Decides when silence is worth a word, and when it is a hang.
//
// Every second or so it is told how far each rank has come (Listen). When somebody has been silent
// for the soft limit of its phase it asks for evidence; what Diagnose makes of that is judged
// (Judge). Two things come out, and they are not the same:
//   Notice   who is waited for, and by whom; accuses nobody, and may turn out to be nothing.
//   Verdict  a hang: a difference that waiting cannot heal, where it is clear whose it is; or the
//            hard limit. Only this may end workers.
//
// Silence is what was watched of it: the time between two calls of Listen counts at most
// kGapMax. So a stopped agent, a suspended machine or a clock that jumps make nobody silent. Of a
// silence that ended well the limits learn, but for that of a rank that waited for others: how long
// they took is learned from them.
//
// Pure. Thread-compatible: one caller at a time (agent/watch/hang_watch.h calls it on the loop).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "proto/base/mono_time.h"
#include "rendezvous/verdict/diagnosis.h"
#include "rendezvous/verdict/hang_limits.h"

namespace muster::verdict {

inline constexpr absl::Duration kWatchInterval = absl::Seconds(1);
inline constexpr absl::Duration kGapMax = absl::Seconds(2);

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
};

// A rank whose silence somebody else has measured.
struct RankSilence {
  int rank = 0;
  WatchPhase phase = WatchPhase::kStep;
  absl::Duration silent_for;
  friend bool operator==(const RankSilence&, const RankSilence&) = default;
};

// What cannot heal is said as soon as it has been seen a few times, over this much silence; less is
// not looked into.
inline constexpr absl::Duration kSuspiciousSilence = absl::Seconds(5);

// Below it the ranks at fault are a guess: two sides of equal size, of which one is right.
inline constexpr double kConfidenceToAct = 0.8;

struct Notice {
  Diagnosis diagnosis;
  std::string text;
};
struct Verdict {
  Diagnosis diagnosis;
  std::string text;
  std::string reason;  // why it is a hang now
  // Ago: the first of those concerned had been silent for long enough to be looked into.
  absl::Duration since_detected;
};
// What a notice or a verdict was about goes on.
struct Recovery {
  std::string text;
};
using WatchEffect = std::variant<Notice, Verdict, Recovery>;

class HangWatchCore {
 public:
  explicit HangWatchCore(absl::Duration hang_timeout) : limits_(hang_timeout) {}

  // Other processes; what was learned stays.
  void StartRound();

  // Whether evidence is wanted now. `of_mute`: silences of ranks whose pulses tell nothing, as
  // others have measured them (gatherings.h); they count until the next call.
  bool Listen(const std::vector<Pulse>& pulses, MonoTime now,
              const std::vector<RankSilence>& of_mute = {});
  // Ranks whose pulses tell nothing, and how long they were watched.
  const absl::btree_map<int, absl::Duration>& mute() const { return mute_; }

  // The same, with silences that were measured elsewhere (by the agents, job_watch.h): of all ranks
  // of whom anything is known.
  bool Hear(const std::vector<RankSilence>& silences);

  // The process of `rank` has ended as it should: so has its silence, if it was at its end.
  void Finish(int rank);

  // `diagnosis` of evidence taken after the last Listen. At most one effect, but for a recovery
  // before it.
  std::vector<WatchEffect> Judge(const Diagnosis& diagnosis);

  // Something is being looked into, noticed or judged.
  bool HasIncident() const { return incident_.has_value(); }
  // How long it was watched to be silent; zero if nothing is known of it.
  absl::Duration SilenceOf(int rank) const;
  // By rank.
  std::vector<RankSilence> Silences() const;
  const HangLimits& limits() const { return limits_; }
  HangLimits& limits() { return limits_; }

 private:
  struct RankState {
    Pulse pulse;
    WatchPhase phase = WatchPhase::kStart;
    absl::Duration silent_for;
    bool has_waited = false;  // in this silence
    bool is_mute = false;     // others tell how long it is silent
  };
  struct Incident {
    std::string key;
    int confirmations = 0;
    bool is_noticed = false;
    bool is_judged = false;
    // What the last notice or verdict told, also of an incident that this one has replaced while
    // nothing moved; empty: none.
    std::string subject;
    std::vector<int> ranks;
  };

  static WatchPhase PhaseOf(const Pulse& pulse);
  void Hear(const Pulse& pulse, absl::Duration gap);
  absl::Duration LeastSilence(const std::vector<int>& ranks) const;
  absl::Duration MostSilence(const std::vector<int>& ranks) const;
  // The longest time among the phases of `ranks`.
  absl::Duration LongestSoft(const std::vector<int>& ranks) const;
  absl::Duration LongestHard(const std::vector<int>& ranks) const;
  std::optional<std::string> ReasonForVerdict(const Diagnosis& diagnosis) const;
  void Close(bool goes_on, std::vector<WatchEffect>& out);

  HangLimits limits_;
  std::optional<MonoTime> last_listened_;
  absl::btree_map<int, RankState> ranks_;
  absl::btree_map<int, absl::Duration> mute_;
  std::optional<Incident> incident_;
};

}  // namespace muster::verdict

// Decides when silence is worth a word, and when it is a hang.
//
// It hears how long each rank has been silent (silence_meter.h). When somebody has been silent for
// the soft limit of its phase it asks for evidence; what Diagnose makes of that is judged. Two
// things come out, and they are not the same:
//   Notice   who is waited for, and by whom; accuses nobody, and may turn out to be nothing.
//   Verdict  a hang: a difference that waiting cannot heal, where it is clear whose it is; or the
//            hard limit. Only this may end workers.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/silence_meter.h"
#include "rendezvous/hangs/judge/hang_limits.h"

namespace muster::hangs {

// Below it the ranks at fault are a guess: two sides of equal size, of which one is right.
inline constexpr double kConfidenceToAct = 0.8;

struct Notice {
  Diagnosis diagnosis;
};
struct Verdict {
  Diagnosis diagnosis;
  std::string reason;  // why it is a hang now
  // Ago: the first of those concerned had been silent for long enough to be looked into.
  absl::Duration since_detected;
};
// What a notice or a verdict was about goes on.
struct Recovery {
  std::string text;
};
using WatchEffect = std::variant<Notice, Verdict, Recovery>;

class HangJudge {
 public:
  // Other processes; the limits stay.
  void StartRound();

  // `silences` has all ranks of whom anything is known. Whether evidence is wanted now.
  bool Hear(const std::vector<RankSilence>& silences);
  // `diagnosis` of evidence taken after the last Hear. At most one effect, but for a recovery
  // before it.
  std::vector<WatchEffect> Judge(const Diagnosis& diagnosis);

  // Something is being looked into, noticed or judged.
  bool HasIncident() const { return incident_.has_value(); }
  const HangLimits& limits() const { return limits_; }
  HangLimits& limits() { return limits_; }

 private:
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

  // Zero if nothing is known of it.
  absl::Duration SilenceOf(int rank) const;
  absl::Duration LeastSilence(const std::vector<int>& ranks) const;
  // The longest limit among the phases of `ranks`, and `least`.
  absl::Duration Longest(absl::Duration (HangLimits::*limit)(WatchPhase) const,
                         const std::vector<int>& ranks, absl::Duration least) const;
  std::optional<std::string> ReasonForVerdict(const Diagnosis& diagnosis) const;
  void Close(bool goes_on, std::vector<WatchEffect>& out);

  HangLimits limits_;
  absl::btree_map<int, RankSilence> ranks_;
  std::optional<Incident> incident_;
};

}  // namespace muster::hangs

// How long ranks were silent before they went on, per phase.
//
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::hangs {

// Values are sent between nodes: new ones go to the end.
enum class WatchPhase { kStart, kFirstStep, kStep, kEvaluation, kCheckpoint, kEnd };
inline constexpr int kNumWatchPhases = 6;
absl::string_view ToString(WatchPhase phase);

// What was learned, to be told to others and added to what they know.
struct LearnedSilences {
  struct Count {
    WatchPhase phase = WatchPhase::kStart;
    int bucket = 0;  // of SilenceHistory
    int64_t count = 0;
    friend bool operator==(const Count&, const Count&) = default;
  };
  std::vector<Count> counts;  // that are not zero, by phase and bucket
  std::array<absl::Duration, kNumWatchPhases> longest;
  friend bool operator==(const LearnedSilences&, const LearnedSilences&) = default;
};

class SilenceHistory {
 public:
  // Bounds of buckets grow by a quarter, from a tenth of a second to a day and beyond.
  static constexpr int kNumBuckets = 64;

  // A rank was silent for this long in `phase`, and went on.
  void Learn(WatchPhase phase, absl::Duration silence);

  LearnedSilences Learned() const;
  // Adds what another has learned since it was `before`; counts that have fallen are those of a new
  // beginning, and count as a whole.
  void Add(const LearnedSilences& learned, const LearnedSilences& before);

  // What 999 of 1000 silences stayed below; nothing while there are too few.
  std::optional<absl::Duration> Usual(WatchPhase phase) const;
  absl::Duration Longest(WatchPhase phase) const;

 private:
  struct Histogram {
    std::array<int64_t, kNumBuckets> counts{};
    int64_t total = 0;
    absl::Duration longest;
  };

  std::array<Histogram, kNumWatchPhases> seen_;
};

}  // namespace muster::hangs

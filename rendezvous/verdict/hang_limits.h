// How long a rank may be silent: learned per phase from how long ranks were silent before they went
// on.
//
// The soft limit is for a notice, which accuses nobody. The hard one ends workers. What was learned
// lengthens both and shortens neither below what is set: a thousand quick steps say nothing about
// the one that waits for a slow disk.
//
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/progress_board.h"

namespace muster::verdict {

// Values are sent between nodes: new ones go to the end.
enum class WatchPhase { kStart, kFirstStep, kStep, kEvaluation, kCheckpoint, kEnd };
inline constexpr int kNumWatchPhases = 6;
absl::string_view ToString(WatchPhase phase);

// What was learned, to be told to others and added to what they know.
struct LearnedSilences {
  struct Count {
    WatchPhase phase = WatchPhase::kStart;
    int bucket = 0;  // of HangLimits
    int64_t count = 0;
    friend bool operator==(const Count&, const Count&) = default;
  };
  std::vector<Count> counts;  // that are not zero, by phase and bucket
  std::array<absl::Duration, kNumWatchPhases> longest;
  friend bool operator==(const LearnedSilences&, const LearnedSilences&) = default;
};

class HangLimits {
 public:
  // Bounds of buckets grow by a quarter, from a tenth of a second to a day and beyond.
  static constexpr int kNumBuckets = 64;
  static constexpr absl::Duration kSoftMin = absl::Seconds(6);
  static constexpr absl::Duration kSoftMax = absl::Minutes(10);

  // `hang_timeout` is the hard limit of a step where nothing longer was learned.
  explicit HangLimits(absl::Duration hang_timeout = absl::Minutes(10))
      : hang_timeout_(hang_timeout) {}

  // A rank was silent for this long in `phase`, and went on.
  void Learn(WatchPhase phase, absl::Duration silence);

  LearnedSilences Learned() const;
  // Adds what another has learned since it was `before`; counts that have fallen are those of a new
  // beginning, and count as a whole.
  void Add(const LearnedSilences& learned, const LearnedSilences& before);
  void SetTimeout(absl::Duration hang_timeout) { hang_timeout_ = hang_timeout; }

  absl::Duration Soft(WatchPhase phase) const;
  absl::Duration Hard(WatchPhase phase) const;

 private:
  struct Histogram {
    std::array<int64_t, kNumBuckets> counts{};
    int64_t total = 0;
    absl::Duration longest;
  };
  static absl::Duration UpperBound(int bucket);
  // What 999 of 1000 silences stayed below; nothing while there are too few.
  std::optional<absl::Duration> Usual(WatchPhase phase) const;

  absl::Duration hang_timeout_;
  std::array<Histogram, kNumWatchPhases> seen_;
};

}  // namespace muster::verdict

#include "rendezvous/hangs/evidence/silence_history.h"

#include <algorithm>
#include <cmath>

namespace muster::hangs {
namespace {

constexpr int64_t kSamplesMin = 30;
constexpr double kBucketGrowth = 1.25;
constexpr absl::Duration kFirstBucket = absl::Milliseconds(100);

absl::Duration UpperBound(int bucket) { return kFirstBucket * std::pow(kBucketGrowth, bucket); }

}  // namespace

absl::string_view ToString(WatchPhase phase) {
  constexpr std::array<absl::string_view, kNumWatchPhases> kNames = {
      "start", "first step", "step", "evaluation", "checkpoint", "end"};
  return kNames[static_cast<size_t>(phase)];
}

void SilenceHistory::Learn(WatchPhase phase, absl::Duration silence) {
  Histogram& seen = seen_[static_cast<size_t>(phase)];
  int bucket = 0;
  while (bucket + 1 < kNumBuckets && UpperBound(bucket) < silence) ++bucket;
  ++seen.counts[bucket];
  ++seen.total;
  seen.longest = std::max(seen.longest, silence);
}

LearnedSilences SilenceHistory::Learned() const {
  LearnedSilences out;
  for (int phase = 0; phase < kNumWatchPhases; ++phase) {
    out.longest[phase] = seen_[phase].longest;
    for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
      const int64_t count = seen_[phase].counts[bucket];
      if (count > 0) out.counts.push_back({static_cast<WatchPhase>(phase), bucket, count});
    }
  }
  return out;
}

void SilenceHistory::Add(const LearnedSilences& learned, const LearnedSilences& before) {
  for (const LearnedSilences::Count& now : learned.counts) {
    int64_t more = now.count;
    for (const LearnedSilences::Count& then : before.counts) {
      const bool is_same = then.phase == now.phase && then.bucket == now.bucket;
      if (is_same && then.count <= now.count) more -= then.count;
    }
    Histogram& seen = seen_[static_cast<size_t>(now.phase)];
    // Nothing real comes near it; what a peer makes up must not overflow.
    constexpr int64_t kCountMax = int64_t{1} << 40;
    more = std::min(more, kCountMax - seen.total);
    seen.counts[now.bucket] += more;
    seen.total += more;
  }
  for (int phase = 0; phase < kNumWatchPhases; ++phase) {
    seen_[phase].longest = std::max(seen_[phase].longest, learned.longest[phase]);
  }
}

std::optional<absl::Duration> SilenceHistory::Usual(WatchPhase phase) const {
  const Histogram& seen = seen_[static_cast<size_t>(phase)];
  if (seen.total < kSamplesMin) return std::nullopt;
  const int64_t above = seen.total / 1000;
  int64_t left = seen.total;
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    left -= seen.counts[bucket];
    if (left <= above) return UpperBound(bucket);
  }
  return seen.longest;
}

absl::Duration SilenceHistory::Longest(WatchPhase phase) const {
  return seen_[static_cast<size_t>(phase)].longest;
}

}  // namespace muster::hangs

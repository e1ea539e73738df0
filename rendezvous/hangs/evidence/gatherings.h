// What all ranks of a job have to come to, and some have not: init_process_group and barriers at
// PyTorch's store. The agent of node 0 serves it (agent/torch_store), and so knows of the ranks of
// every node whether they have come, also of those that tell nothing themselves.
//
// It becomes evidence as the rest does: who waits has a pending operation of a group of all ranks,
// and who is missing has called none. What a rank tells of itself stays, and counts for more.
//
// Pure values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/incident_parts.h"
#include "rendezvous/hangs/evidence/silence_meter.h"

namespace muster::hangs {

struct Gathering {
  // What is waited in: "init_process_group", "barrier 'k' of PyTorch's store".
  std::string name;
  bool is_start = false;  // no rank that has called anything can be missing
  // Ranks, sorted. Who is in neither has come.
  std::vector<int> waiting;
  std::vector<int> missing;
  // The time for which it was watched with just these missing, as is silence (silence_meter.h).
  absl::Duration silent_for;
  friend bool operator==(const Gathering&, const Gathering&) = default;
};

// The most gatherings of one answer; any more are left out.
inline constexpr size_t kGatheringsMax = 8;

// Measures how long nobody comes. Thread-compatible.
class GatheringWatch {
 public:
  // What has not been heard of for this long is forgotten: where the store does not answer, nothing
  // is known of it.
  static constexpr absl::Duration kForgotten = absl::Seconds(5);

  void StartRound() { *this = GatheringWatch(); }
  // All of them, as the store has them at `now`. One of the same name as before is the same.
  void Listen(std::vector<Gathering> gatherings, MonoTime now);
  const std::vector<Gathering>& At(MonoTime now);

 private:
  MonoTime heard_at_;
  std::vector<Gathering> gatherings_;
};

// The ranks that are missing from each: another value than before once somebody has come.
std::vector<std::vector<int>> MissingAt(const std::vector<Gathering>& gatherings);

// Silences at the start, of ranks in `mute`, which tell nothing themselves and were watched for so
// long: those who wait are silent for as long as nobody has come; those who are missing at most for
// as long as they were watched. A barrier tells of no silence: it may be a thread that waits there,
// or has still to come, while the rank works.
std::vector<RankSilence> SilencesOf(const std::vector<Gathering>& gatherings,
                                    const absl::btree_map<int, absl::Duration>& mute);

// The longest time for which no rank has come to a gathering of the start; zero where there is
// none.
absl::Duration SilenceAtStart(const std::vector<Gathering>& gatherings);

// Each becomes a group of all ranks in `evidence`. A rank that tells nothing itself and is missing
// or waits is out of reach no longer: that much is known of it. One of which nothing at all is
// known stays so. At the start a rank that has called any operation is not missing, wherever it has
// met the others, and one that has met others does not wait: it is a group of fewer ranks that it
// belongs to.
void AddGatherings(const std::vector<Gathering>& gatherings, Evidence& evidence);

// Says of the reports of ranks of which nobody else tells that their silence was seen at the store.
void MarkToldByStore(const std::vector<Gathering>& gatherings, std::vector<RankReport>& reports);

}  // namespace muster::hangs

// What a server that kept the record of a job makes of it when it comes back. Its agents do not
// join: they say what they run, as ever, and find themselves known.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// Members have at least this long to come back before their leases end: the longest back-off of a
// link, and an attempt that runs into its time-out.
inline constexpr absl::Duration kReattachTime = absl::Seconds(15);

// The newest transaction of `record` may be lost: numbers that it may have given to rounds are not
// given again. What this leaves is durable before another round begins, so that a later life that
// loses its newest transaction, too, goes on from here.
void SkipLostRounds(RoundRecord& record);

// The state that follows from the record alone. Every member that is not lost counts as being in
// its round and not connected, until it says what it does; who only waited for a place joins again.
JobState RestoreState(JobRecord record, const LeaseSettings& lease, MonoTime now);

// Two states of one job with equal marks have equal records, but for what agents say again: live
// members that have succeeded, and failures that come in while the job ends.
struct RecordMark {
  JobPhase phase = JobPhase::kForming;
  Round round = kNoRound;
  int restarts_used = 0;
  int membership_changes = 0;
  int64_t committed_step = -1;
  int restarts_without_commit = 0;
  size_t num_lost = 0;
  std::optional<int64_t> stop_step;
  bool stop_ends_job = false;
  size_t num_drained = 0;
  friend bool operator==(const RecordMark&, const RecordMark&) = default;
};
RecordMark MarkOf(const JobRecord& record);

}  // namespace muster::rendezvous

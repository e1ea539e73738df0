// How much coming and going a job tolerates: which nodes are held back, and when a running round
// ends to admit a node. Worker failures have a budget of their own (max_restarts).
//
// Without a policy a single node that flaps every second or two would stop all progress, because
// every arrival and departure restarts everybody.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// A node is held back once it has more than twice as many changes as the others typically have: on
// machines that all come and go, none stands out. The first such change is free; from the second on
// the node is held back, twice as long each time. At most half of the nodes are held back.
inline constexpr absl::Duration kFirstHoldBack = absl::Seconds(30);
inline constexpr absl::Duration kMaxHoldBack = absl::Minutes(30);
// A node without a change for this long after its last hold-back has a clean record.
inline constexpr absl::Duration kForgivenAfter = absl::Minutes(10);

// A round runs at least this long before it ends for a newcomer, and twice as long after each
// change that came before a round had settled. Newcomers that arrive together are admitted
// together. A node that returns for the first time is admitted at once. The time is not doubled if
// half of the nodes wait.
inline constexpr absl::Duration kFirstGrowthHoldOff = absl::Seconds(10);
inline constexpr absl::Duration kMaxGrowthHoldOff = absl::Minutes(10);
inline constexpr absl::Duration kGatherNewcomers = absl::Seconds(2);
inline constexpr absl::Duration kSettledAfter = absl::Minutes(5);

// How long the next round is held off after `quick_ends` rounds in a row that ended within ten
// seconds.
absl::Duration PauseAfter(int quick_ends);

// Records that a round ended because the node left or joined again by itself.
void RecordChange(JobState& state, const std::string& node_name, MonoTime now);
// Records that a round has admitted the node: its next return is not its first, even if the server
// hears of its departure late.
void RecordReturn(JobState& state, const std::string& node_name, MonoTime now);

// Whether `name` may be put in JobState::held_back. If as many nodes are held back as allowed, the
// one with the shortest hold is released, which may be `name` itself.
bool MayBeHeldBack(JobState& state, const std::string& name, MonoTime now);

// Whether the node is admitted only if the round would otherwise have fewer than min_nodes. Always
// false in a static job, where every node is needed.
bool IsHeldBack(const JobState& state, const std::string& node_name, MonoTime now);

// The nodes in `joined` that could run with the members: those that reach them all, where that is
// required (network_split.h).
std::vector<Incarnation> Newcomers(const JobState& state);

// When the running round ends to admit its newcomers. Nothing if it does not: no free place, no
// newcomer, a static job, members that have finished, --scale_up=never, or --scale_up=checkpoint
// without a checkpoint committed late enough.
std::optional<MonoTime> GrowthTime(const JobState& state);

// When the first of those held back is released; InfiniteFuture() if nobody is.
MonoTime NextRelease(const JobState& state);

// How many members the running round can spare so that, with the nodes that wait for a place,
// min_nodes remain. 0 if the round cannot be formed again without them: in a static job, or in one
// that stops or finishes.
int NodesToSpare(const JobState& state);

// Counts a round that ends at `now`.
void RecordRoundEnd(JobState& state, StopCause cause, MonoTime now);

}  // namespace muster::rendezvous

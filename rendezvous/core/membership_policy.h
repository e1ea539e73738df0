// How much coming and going a job bears: who is held back, and when a running round ends for a node
// that wants to come in. Failures of workers have a budget of their own (max_restarts).
//
// Without a policy one node that flaps every second or two stops all progress, because each coming
// and each going restarts everybody.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>

#include "proto/base/mono_time.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// A node is held back for changes beyond twice as many as the others typically have: on machines
// that all come and go, nobody stands out. Of such changes the first is free; from the second on it
// is held back, twice as long each time. Never more than half of the nodes are.
inline constexpr absl::Duration kFirstHoldBack = absl::Seconds(30);
inline constexpr absl::Duration kMaxHoldBack = absl::Minutes(30);
// A node without a change for this long after its last hold-back begins anew.
inline constexpr absl::Duration kForgivenAfter = absl::Minutes(10);

// A round runs this long before it ends for a newcomer, and twice as long after each change that
// came before a round had settled; and newcomers that come together come in together. A node that
// comes back for the first time comes in at once, and where half of the nodes wait the time is not
// doubled.
inline constexpr absl::Duration kFirstGrowthHoldOff = absl::Seconds(10);
inline constexpr absl::Duration kMaxGrowthHoldOff = absl::Minutes(10);
inline constexpr absl::Duration kGatherNewcomers = absl::Seconds(2);
inline constexpr absl::Duration kSettledAfter = absl::Minutes(5);

// How long the next round is held off after `quick_ends` rounds in a row that ended within ten
// seconds.
absl::Duration PauseAfter(int quick_ends);

// A node's going, or its joining again by itself, has ended a round.
void RecordChange(JobState& state, const std::string& node_name, MonoTime now);
// A round has taken the node: its next return is not its first, though its next going may be heard
// of late.
void RecordReturn(JobState& state, const std::string& node_name, MonoTime now);

// Once as many are held back as may be, the one that is held for the shortest time is let go,
// perhaps `name`: no more than half of the nodes are held. For nodes that are to be put in
// JobState::held_back.
bool MayBeHeldBack(JobState& state, const std::string& name, MonoTime now);

// Whether the node gets a place only if the round would have fewer than min_nodes without it. Never
// in a static job, where every node is needed.
bool IsHeldBack(const JobState& state, const std::string& node_name, MonoTime now);

// When the running round ends for the nodes in `joined`; none if it does not: no place, no
// newcomer, a static job, members that have finished, --scale_up=never, or --scale_up=checkpoint
// before a checkpoint was committed that late.
std::optional<MonoTime> GrowthTime(const JobState& state);

// When the first of those held back is released; InfiniteFuture() if nobody is.
MonoTime NextRelease(const JobState& state);

// How many members the running round can do without: with those that wait for a place there would
// still be min_nodes. None where the round cannot be formed anew without them: of a static job, of
// one that stops or finishes.
int NodesToSpare(const JobState& state);

// Keeps count when a round ends at `now`.
void RecordRoundEnd(JobState& state, StopCause cause, MonoTime now);

}  // namespace muster::rendezvous

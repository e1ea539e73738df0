// Numbers the nodes of a completed round and derives every node's Assignment.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

// The order of `joined` by node rank. Survivors of `previous` keep their place, newcomers first
// fill the places of those that are gone (a replacement takes the lost node's rank), then come
// after; gaps that nobody fills are closed. Newcomers are ordered by --node_rank where all of them
// have one, then by name in natural order (node2 before node10), then by arrival. In a static job
// --node_rank is the place.
//
// Threads: pure.
std::vector<Incarnation> OrderNodes(absl::Span<const Incarnation> previous,
                                    absl::Span<const NodeState* const> joined, bool is_static);

// One Assignment per node of `order`, by node rank. Where nodes of several machines meet, one that
// gave its loopback is known to all by another of its addresses. Shapes: result[order.size()].
std::vector<Assignment> AssignRanks(absl::Span<const NodeState* const> order, Round round,
                                    Instance instance);

// Natural order of names: runs of digits compare as numbers. Equal only if the texts are equal.
bool NaturalLess(absl::string_view a, absl::string_view b);

}  // namespace muster::rendezvous

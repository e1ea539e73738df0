// Tells ranks of a mesh apart that call its groups in one order from the rank that does not.
//
// The ranks of a mesh run one program: how many calls two of them have made in each dimension tells
// which of the two is ahead, unless one has left the common order. A *dimension* is a set of groups
// of one description and size that share no rank; each rank is in one of them.
//
// Pure. Cost: linear in the members of groups, but for a sort of the ranks.
#pragma once

#include <optional>
#include <vector>

#include "rendezvous/hangs/evidence/evidence_index.h"

namespace muster::hangs {

// Those of `ranks` without which, each by itself, all others are in one order: none where more have
// left it, two where nobody can tell which of them has. Nothing where `groups` are of no mesh: not
// every rank has a group in each of their dimensions. Ranks are indices.
std::optional<std::vector<int>> FindRanksOutOfOrder(const EvidenceIndex& index,
                                                    const std::vector<int>& groups,
                                                    const std::vector<int>& ranks);

}  // namespace muster::hangs

// From progress boards to what the verdict is made of (rendezvous/verdict/evidence.h).
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/progress_board.h"
#include "rendezvous/verdict/evidence.h"
#include "rendezvous/verdict/hang_watch_core.h"
#include "rendezvous/verdict/incident_parts.h"

namespace muster::agent {

// One worker of this node.
struct WatchedRank {
  int rank = 0;
  int pid = 0;
  std::string node;
  verdict::Life life = verdict::Life::kRunning;
  absl::Duration silent_for;
  std::string fault;
  std::string doing;
  BoardSnapshot board;
};

// Evidence of the ranks in `watched`; the others of the `world_size` are members of groups of whom
// nothing is known. Of each group what waits, the last few calls, and the last send and receive of
// each peer.
verdict::Evidence MakeEvidence(Round round, int world_size,
                               const std::vector<WatchedRank>& watched);

// `is_told` where a worker has opened the board.
verdict::Pulse MakePulse(int rank, const ProgressBoard& board);

using verdict::PhaseInWords;

}  // namespace muster::agent

// Makes of progress boards, and of what PyTorch tells, what the verdict is made of
// (rendezvous/hangs/evidence/evidence.h).
//
// Pure values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/watch/torch_records.h"
#include "agent/watch/torch_watch.h"
#include "proto/base/ids.h"
#include "proto/base/progress_board.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/incident_parts.h"
#include "rendezvous/hangs/evidence/silence_meter.h"

namespace muster::agent {

// One worker of this node.
struct WatchedRank {
  int rank = 0;
  int pid = 0;
  std::string node;
  hangs::Life life = hangs::Life::kRunning;
  absl::Duration silent_for;
  bool is_mute = false;  // neither a board nor PyTorch tells of it
  bool is_busy = false;  // it computes, reads or writes, by what it uses
  bool loops = false;    // it computes, for long in one function
  std::string fault;
  std::string doing;
  hangs::Hold hold = hangs::Hold::kUnknown;
  BoardSnapshot board;
  std::optional<TorchRank> torch;
};

// Evidence of the ranks in `watched`; the others of the `world_size` are members of groups of whom
// nothing is known. Of each group what waits, the last few calls, and the last send and receive of
// each peer.
//
// PyTorch's groups have the ranks that `members` names, which its programs say of themselves where
// they can; the first has all. Of others those that have used it are known, and that there may be
// more.
hangs::Evidence MakeEvidence(Round round, int world_size, const std::vector<WatchedRank>& watched,
                             const TorchMembers& members = {});

// `is_told` where a worker has opened the board, or where PyTorch tells of it. `torch` may be null;
// its answer is as old as its question.
hangs::Pulse MakePulse(int rank, const ProgressBoard& board, const TorchRank* torch, MonoTime now);

using hangs::PhaseInWords;

}  // namespace muster::agent

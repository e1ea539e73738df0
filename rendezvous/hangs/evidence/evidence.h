// What is known of all ranks at one instant: what each was asked to do by its communicators, how
// far it came, and what it looks like from outside.
//
// Collected by the agents (agent/watch/board_evidence.h makes it from progress boards); judged by
// Diagnose (diagnosis.h).
//
// Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/progress_board.h"

namespace muster::hangs {

// A member of a group whose rank in the job nobody has said.
inline constexpr int kUnknownRank = -1;

// The place of a send or receive among those of its two ranks, where only a stack tells of it.
inline constexpr int64_t kUnknownSequence = -1;

// How PyTorch's call is named that makes a group, and that all ranks have to call.
inline constexpr char kNewGroup[] = "new_group";

// How PyTorch's call is named that ends all groups. What carries them may have it wait for other
// ranks, or not; and who has no record of it may have come through it.
inline constexpr char kDestroy[] = "destroy_process_group";

// Calls of PyTorch's RPC, as receives from the rank that is to answer: a thread of that rank's own
// answers, whatever its main thread waits for.
inline constexpr char kRpcGroup[] = "RPC";

// Waits for keys of a store, as receives from a rank that is not known: any may set them.
inline constexpr char kStoreGroup[] = "store";

struct Group {
  std::string name;
  std::vector<int> members;   // ranks of the job by rank in the group; kUnknownRank
  uint32_t id = 0;            // tells groups of one name apart; the same for all members
  bool is_gathering = false;  // gatherings.h: told by who has come, not by the ranks
  bool is_on_device = false;  // of PyTorch over NCCL, whose calls each rank counts by itself
};

// One call of a communicator.
struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  OperationState state = OperationState::kIssued;
  // Counts the group's collectives, or sends (receives) between two ranks; or kUnknownSequence.
  int64_t sequence = 0;
  int64_t bytes = 0;
  // Rank in the group: the root, or the other end of a send or receive; -1: none, or not known.
  int peer = -1;
  std::string dtype;
  std::string name;  // that its library gives it; empty: its kind's
  // Over the group's collectives up to and with this one, see BoardOperation; 0: not known.
  uint64_t chain = 0;
  bool awaited = false;  // the program waits for it and does nothing else

  bool is_collective() const {
    return kind != OperationKind::kSend && kind != OperationKind::kRecv;
  }
  bool is_pending() const {
    return state == OperationState::kIssued || state == OperationState::kStarted;
  }
};

// What one rank did in one group.
struct GroupRecord {
  int group = 0;           // into Evidence::groups
  int64_t num_issued = 0;  // collectives that it has called
  // Oldest first: all that are pending, the last few that are done, and the last send and receive
  // of each peer.
  std::vector<Operation> operations;
};

enum class Life {
  kRunning,
  kStopped,      // by a signal (SIGSTOP): it goes on when somebody continues it
  kEnded,        // its process has gone
  kNoReply,      // it runs, but its records cannot be read
  kUnreachable,  // its agent cannot be heard: nothing is known
};

struct RankEvidence {
  int rank = 0;
  Round round;
  std::string node;
  int pid = 0;
  Life life = Life::kRunning;
  Phase phase = Phase::kStarting;
  std::optional<int64_t> step;
  absl::Duration silent_for;
  // It tells nothing of what it does, and `silent_for` is how long it was watched. If it runs,
  // nothing may be concluded from its having no records: it is out of reach but for what others
  // tell of it.
  bool is_mute = false;
  // Whether `awaited` is set where it holds. Else the oldest pending operation counts as awaited.
  bool tells_waits = false;
  bool is_busy = false;  // it computes, reads or writes, as seen from outside
  bool loops = false;    // it computes, and has not been seen to leave one function for long
  std::string fault;     // of its device or network, in words; empty: none is known
  std::string doing;     // as seen from outside: "asleep (hrtimer_nanosleep)"
  std::vector<GroupRecord> groups;
};

struct Evidence {
  Round round;  // what is of another is dropped
  std::vector<Group> groups;
  std::vector<RankEvidence> ranks;
};

}  // namespace muster::hangs

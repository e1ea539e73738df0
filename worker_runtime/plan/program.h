// A step as data: what one rank does, in which order, and what each action waits for.
//
//   lane     runs
//   compute  FORWARD, BACKWARD, NORM, CLIP, UPDATE, one after the other in the program's order
//   reduce   REDUCE, LOSS, SHARE_LOSS, SQUARES  ) collectives and transfers are *started* in the
//   gather   UNSHARD                            ) program's order, all of them together; each ends
//   peer     SEND, RECV                         ) when it can
//
// The engine executes it (engine/executor_core.h), ProveProgram walks those of all ranks together
// before the first step, `muster plan` folds it into memory and bytes. Its text is hashed and
// compared across ranks.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/bucket_plan.h"
#include "worker_runtime/plan/ordered_sums.h"
#include "worker_runtime/plan/state_types.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

enum class ActionKind : uint8_t {
  kForward,   // of (stage, micro-batch): the user's model
  kBackward,  // of (stage, micro-batch); gradients to `slot`, then `merges`
  kSend,      // `payload` of (stage, micro-batch) to `peer`
  kRecv,
  kReduce,     // gradients of a bucket, over the ranks of a group: `merges`, then the collective
  kLoss,       // the sums of loss and tokens, over the ranks that computed them
  kShareLoss,  // the same, from the last stage to all
  kNorm,       // squares of the gradient, by block, of the blocks that this rank owns
  kSquares,    // those of the others
  kClip,       // the norm, and what becomes of the step
  kUpdate,     // parameters and moments of `blocks`
  kUnshard,    // parameters of a bucket, each rank giving its shard
};
inline constexpr int kNumActionKinds = 12;
absl::string_view ToString(ActionKind kind);

enum class Lane : uint8_t { kCompute, kReduce, kGather, kPeer };
absl::string_view ToString(Lane lane);
Lane LaneOf(ActionKind kind);

// What a SEND carries.
enum class Payload : uint8_t {
  kNothing,
  kActivation,  // of a stage's end, forwards
  kGradient,    // of a stage's begin, backwards
  kTied,        // the gradient that a later stage adds to a parameter of an earlier one
  kValue,       // such a parameter's new value
};
absl::string_view ToString(Payload payload);

// The kinds of memory that are laid out and counted.
enum class Arena : uint8_t {
  kParameters,
  kGradients,
  kPartialSums,  // of ordered mode, beside the gradients
  kOptimizer,
  kBuffers,      // of collectives: with the padding that their results lack
  kActivations,  // and what the tape keeps with them
};
inline constexpr int kNumArenas = 6;
absl::string_view ToString(Arena arena);
using ArenaBytes = std::array<int64_t, kNumArenas>;
int64_t& At(ArenaBytes& bytes, Arena arena);
int64_t At(const ArenaBytes& bytes, Arena arena);
int64_t TotalOf(const ArenaBytes& bytes);

// How the ranks of a group exchange.
enum class Collective : uint8_t { kAlone, kAllReduce, kReduceScatter, kAllGather, kTransfer };
absl::string_view ToString(Collective collective);

inline constexpr int kNone = -1;

struct Action {
  ActionKind kind = ActionKind::kForward;
  std::vector<int> after;  // earlier actions of this program that must be done
  // REDUCE only: not the whole of this BACKWARD need be done, but the gradients of the parameters
  // [first_parameter, end_parameter).
  int backward = kNone;
  int first_parameter = 0;
  int end_parameter = 0;

  int stage = 0;
  int64_t micro_batch = kNone;  // of this rank's: 0 .. accumulation - 1
  int bucket = kNone;
  BlockRange blocks;          // that are worked on
  int slot = kNone;           // gradient buffer: BACKWARD writes it
  std::vector<Merge> merges;  // BACKWARD: of whole buffers; REDUCE: of `blocks`

  // With others:
  Collective collective = Collective::kAlone;
  int group = kNone;  // of Program::groups
  int peer = kNone;   // rank of the world; of transfers
  Payload payload = Payload::kNothing;
  int64_t bytes = 0;  // of what is exchanged, whole
  int64_t sends = 0;  // bytes that leave this rank

  // Activations: kept from its start on; no longer kept once it is done; and needed beside those that
  // are kept while it runs.
  int64_t keeps_bytes = 0;
  int64_t frees_bytes = 0;
  int64_t works_in_bytes = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

// Ranks of the world that share a communicator, ascending.
struct Group {
  std::string name;
  std::vector<int> ranks;
  friend bool operator==(const Group&, const Group&) = default;
};

struct Program {
  int rank = 0;
  StateTypes types;
  std::vector<Group> groups;    // that this rank belongs to
  std::vector<Action> actions;  // in the order of launch
  ArenaBytes held = {};         // at all times
  // Gradient buffers whose sum over ranks is the gradient (Communicator::AllReduceSubtrees), left
  // to right; the result is in the first.
  std::vector<int> root_slots;
  int num_slots = 1;
  int64_t leaves_per_rank = 1;  // micro-batches
  bool ordered = false;
  BlockRange blocks;               // that this rank holds parameters and gradients of: its stage's
  std::vector<Bucket> buckets;     // of them, in the order of their reduction
  std::vector<BlockRange> owned;   // by bucket: what this rank updates, and holds the moments of
  std::vector<BlockRange> normed;  // blocks whose squares this rank gives to the norm
  int64_t num_blocks = 0;          // of the whole model
  bool sharded = false;            // the optimizer's state, over the ranks of a stage
  UseTrace trace;                  // of this rank's stage
};

// "REDUCE bucket 2 blocks [10, 20) of dp": for people and for the hash.
std::string Describe(const Action& action, const Program& program);
// One line "action <n>=<what>" per action, with what it waits for.
std::string Describe(const Program& program);

}  // namespace muster::plan

// A step as data: what one rank does, in which order, and what each action waits for.
//
//   lane     runs
//   compute  FORWARD, BACKWARD, NORM, CLIP, UPDATE, … one after the other in the program's order
//   reduce   REDUCE, REPLICATE, LOSS, …         ) collectives and transfers are *started* in the
//   gather   UNSHARD                            ) program's order, all of them together; each ends
//   peer     SEND, RECV                         ) when it can
//   memory   RESHARD, at once
//
// Where parameters or gradients are sharded, a pass is not one thing: it comes to its uses of
// units, one after the other (Action::entries), waits there for what the use needs, and other
// actions begin as it comes to one (Action::at).
//
// The engine executes it (engine/executor_core.h), ProvePrograms walks those of all ranks together
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
#include "absl/types/span.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/bucket_plan.h"
#include "worker_runtime/plan/ordered_sums.h"
#include "worker_runtime/plan/state_types.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

enum class ActionKind : uint8_t {
  kForward,   // of (stage, micro-batch): the user's model
  kBackward,  // of (stage, micro-batch); gradients to `slot`, then `merges`
  // The same in two halves: the gradient that the stage before waits for; those of weights.
  kBackwardInput,
  kBackwardWeight,
  kSend,  // `payload` of (stage, micro-batch) to `peer`
  kRecv,
  kReduce,     // gradients of a bucket, over the ranks of a group: `merges`, then the collective
  kReplicate,  // what REDUCE gave this rank, over those that hold the same shard
  kLoss,       // the sums of loss and tokens, over the ranks that computed them
  kShareLoss,  // the same, from the last stage to all
  kNorm,       // squares of the gradient, by block, of the blocks that this rank owns
  kSquares,    // those of the others: by block in ordered mode, else one sum of each rank's
  kClip,       // the norm, and what becomes of the step
  kUpdate,     // parameters and moments of `blocks`
  kUnshard,    // parameters of a bucket, each rank giving its shard
  kReshard,    // gathered parameters are given up, but for a shard that may be kept
};
inline constexpr int kNumActionKinds = 16;
absl::string_view ToString(ActionKind kind);

enum class Lane : uint8_t { kCompute, kReduce, kGather, kPeer, kMemory };
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
  kGathered,  // parameters that are gathered for use, at their most
  kGradients,
  kUnreduced,    // gradients on their way to the ranks that own them, at their most
  kPartialSums,  // of ordered mode, beside the gradients
  kOptimizer,
  kBuffers,      // of collectives: with the padding that their results lack
  kActivations,  // and what the tape keeps with them
};
inline constexpr int kNumArenas = 8;
absl::string_view ToString(Arena arena);
using ArenaBytes = std::array<int64_t, kNumArenas>;
int64_t& At(ArenaBytes& bytes, Arena arena);
int64_t At(const ArenaBytes& bytes, Arena arena);
int64_t TotalOf(const ArenaBytes& bytes);

// How the ranks of a group exchange.
enum class Collective : uint8_t { kAlone, kAllReduce, kReduceScatter, kAllGather, kTransfer };
absl::string_view ToString(Collective collective);

inline constexpr int kNone = -1;
inline constexpr int64_t kPartialBytes = sizeof(double);  // of a block's squares

// A use of a unit by a pass; or of a bucket (Bucket::entered), which `unit` is the number of.
struct Entry {
  int unit = 0;
  std::vector<int> unshards;  // that gathered its parameters; none where they are whole
  std::vector<int> waits;     // what else must be done: those who had the memory of `place` before
  int64_t place = kNone;      // BACKWARD begins to write gradients of the unit's bucket, there
  friend bool operator==(const Entry&, const Entry&) = default;
};

// The moment at which a pass comes to a use.
struct Point {
  int pass = kNone;  // an action
  int entry = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  std::vector<int> after;  // earlier actions of this program that must be done
  // REDUCE only: not the whole of this BACKWARD need be done, but the gradients of the parameters
  // [first_parameter, end_parameter).
  int backward = kNone;
  int first_parameter = 0;
  int end_parameter = 0;
  // The moment from which on it may begin, if any.
  Point at;
  std::vector<Entry> entries;  // of FORWARD and BACKWARD, in their order

  int stage = 0;                // of a transfer: the one that made what travels
  int64_t micro_batch = kNone;  // of this rank's: 0 .. accumulation - 1
  int bucket = kNone;
  BlockRange blocks;          // that are worked on
  int slot = kNone;           // gradient buffer: BACKWARD writes it
  std::vector<Merge> merges;  // BACKWARD: of whole buffers; REDUCE: of `blocks`
  // UNSHARD, RESHARD: where in the arena of gathered parameters, in blocks; REDUCE: where in that
  // of gradients. kNone: what is held whole.
  int64_t place = kNone;
  int64_t padding = kNone;  // of what IsPadded: where in that arena the copy lies, in bytes
  int unshard = kNone;      // RESHARD: what it gives up
  bool secondary = false;   // UNSHARD: from the shards that a RESHARD kept; RESHARD: keeps them

  // With others:
  Collective collective = Collective::kAlone;
  int group = kNone;  // of Program::groups
  int peer = kNone;   // rank of the world; of transfers; SHARE_LOSS: who gives it
  Payload payload = Payload::kNothing;
  int64_t bytes = 0;  // of what is exchanged, whole
  int64_t sends = 0;  // bytes that leave this rank

  // Activations: kept from its start on; no longer kept once it is done; and needed beside those
  // that are kept while it runs.
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

// Ranks that hold a state together.
struct Shards {
  int group = kNone;  // of Program::groups
  int rank = 0;       // of this one in it
  int size = 1;
  friend bool operator==(const Shards&, const Shards&) = default;

  // Blocks of the largest shard of so many.
  int64_t LargestOf(int64_t blocks) const { return (blocks + size - 1) / size; }
  // With the padding that makes shards alike.
  int64_t PaddedOf(int64_t blocks) const { return LargestOf(blocks) * size; }
};

// The blocks of a stage that have gradients.
struct StageBlocks {
  int stage = 0;
  BlockRange blocks;
  friend bool operator==(const StageBlocks&, const StageBlocks&) = default;
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
  std::vector<StageBlocks> stages;  // of this rank, ascending
  // Those of gradients, in the order of their reduction; then those of frozen parameters.
  std::vector<Bucket> buckets;
  std::vector<int> bucket_of_unit;  // kNone: of another stage, or without parameters that learn
  std::vector<int> frozen_bucket_of_unit;
  std::vector<BlockRange> normed;  // blocks whose squares this rank gives to the norm
  int64_t num_blocks = 0;          // of the whole model, with gradients
  bool sharded = false;            // the optimizer's state, over the ranks of a shard group
  // Gradients rest as shards too: what a micro-batch adds is reduced with its backward pass. Else
  // they are whole, in slots.
  bool streams_gradients = false;
  Shards shards;     // of everything that is sharded
  Shards secondary;  // of parameters between two uses; size 1: none
  // Arenas, in blocks.
  int64_t gathered_blocks = 0;
  int64_t frozen_gathered_blocks = 0;  // frozen parameters are gathered in an arena of their own
  int64_t unreduced_blocks = 0;
  int64_t padding_bytes = 0;
  int64_t live_elements = 0;  // of parameters that are gathered at once, at most
};

// Whether it is BACKWARD, whole or one of its halves; and whether it writes gradients of weights.
inline bool IsBackward(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput ||
         action.kind == ActionKind::kBackwardWeight;
}
inline bool WritesGradients(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}
// The blocks of one of this rank's stages that have gradients.
BlockRange BlocksOfStage(const Program& program, int stage);

// Whether passes have uses (Action::entries).
bool UsesMatter(const Program& program);

// The buckets of gradients.
absl::Span<const Bucket> LearnedBuckets(const Program& program);
// What this rank updates of each of them, and holds the moments of.
std::vector<BlockRange> OwnedBlocks(const Program& program);
// The buckets of a unit's parameters: those that learn, those that are frozen; none of a unit of
// another stage.
std::vector<int> BucketsOfUnit(const Program& program, int unit);
// Whether what backward passes come to are buckets: where gradients alone are sharded.
bool UsesBuckets(const Program& program);
// What a pass comes to as it uses a parameter of `unit`; where these are buckets, one that learns.
int UseOf(const Program& program, int parameter, int unit);
// The buckets of a use, and of them that of its gradients.
std::vector<int> BucketsOfUse(const Program& program, int use);
int GradientBucketOf(const Program& program, int use);
// The bucket whose head lies in the last block of `bucket`, and the bucket that has that block;
// kNone: none. Their heads lie in the place of gradients before their blocks.
int BucketBehind(const Program& program, int bucket);
int BucketBefore(const Program& program, int bucket);
inline int64_t HeadBlocks(const Bucket& bucket) { return bucket.head_elements > 0 ? 1 : 0; }
// Whether it is a unit of this rank's stages that has parameters.
inline bool HoldsUnit(const Program& program, int unit) {
  return program.bucket_of_unit[unit] != kNone || program.frozen_bucket_of_unit[unit] != kNone;
}
// Whether a block is one of this rank's stages, of any parameters.
bool HoldsBlock(const Program& program, int64_t block);

// Whether what is added travels in another type than it is kept in.
bool IsRounded(const Action& action, const Program& program);
// Whether a collective works on a copy: of another type, or what it shares out lies whole here, and
// the ranks do not divide it. PaddingOf: the bytes of that copy, one after the other for each root
// of a sum; 0 else.
bool IsPadded(const Action& action, const Program& program);
int64_t PaddingOf(const Action& action, const Program& program);

// Whether those copies lie where gradients were on their way: all of them are of updated parameters
// that are shared out, when every gradient of the step has been reduced.
bool PadsInUnreduced(const Program& program);

// "REDUCE bucket 2 blocks [10, 20) of dp": for people and for the hash.
std::string Describe(const Action& action, const Program& program);
// One line "action <n>=<what>" per action, with what it waits for.
std::string Describe(const Program& program);

}  // namespace muster::plan

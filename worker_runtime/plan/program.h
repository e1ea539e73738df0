// A step as data: what one rank does, in which order, and what each action waits for.
//
//   lane     runs
//   compute  FORWARD, BACKWARD, NORM, CLIP, UPDATE, … one after the other in the program's order
//   reduce   REDUCE, REPLICATE, COMBINE, …      ) collectives and transfers are *started* in the
//   gather   UNSHARD                            ) program's order, all of them together; each ends
//   peer     SEND, RECV                         ) when it can
//   memory   RESHARD, at once
//
// Where parameters or gradients are sharded, a pass is not one thing: it comes to its uses of
// units, one after the other (Pass::entries), waits there for what the use needs, and other
// actions begin as it comes to one (Action::at). Where tensor ranks share layers, it comes to sums
// in the same way, of what each of them has made a part of.
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
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/bucket_plan.h"
#include "worker_runtime/plan/mesh.h"
#include "worker_runtime/plan/ordered_sums.h"
#include "worker_runtime/plan/schedules/pass_order.h"
#include "worker_runtime/plan/schedules/schedule.h"
#include "worker_runtime/plan/state_types.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::plan {

enum class ActionKind : uint8_t {
  kForward,   // of (stage, micro-batch): the user's model
  kBackward,  // of (stage, micro-batch)
  // The same in two halves: the gradient that the stage before waits for; those of weights.
  kBackwardInput,
  kBackwardWeight,
  kSend,
  kRecv,
  kReduce,     // gradients of a bucket, over the ranks of a group
  kReplicate,  // what REDUCE gave this rank, over those that hold the same shard
  kCombine,    // what a pass goes on with, of which each tensor rank has made a part
  kLoss,       // the sums of loss and tokens, over the ranks that computed them
  kShareLoss,  // the same, from the last stage to all
  kNorm,       // squares of the gradient, by block, of the blocks that this rank owns
  kSquares,    // those of the others: by block in ordered mode, else one sum of each rank's
  kClip,       // the norm, and what becomes of the step
  kUpdate,     // parameters and moments of a bucket, as far as this rank owns it
  kUnshard,    // parameters of a bucket, each rank giving its shard
  kReshard,    // gathered parameters are given up, but for a shard that may be kept
};
inline constexpr int kNumActionKinds = 17;
absl::string_view ToString(ActionKind kind);

enum class Lane : uint8_t { kCompute, kReduce, kGather, kPeer, kMemory };
Lane LaneOf(ActionKind kind);

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
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };
absl::string_view ToString(Collective collective);

inline constexpr int64_t kPartialBytes = sizeof(double);  // of a block's squares

// A use of a unit by a pass; or of a bucket (Bucket::entered), which `unit` is the number of. A sum
// within a use is an entry too.
struct Entry {
  int unit = 0;               // kNone: it is a sum
  std::vector<int> unshards;  // that gathered its parameters; none where they are whole
  std::vector<int> waits;     // what else must be done: those who had the memory of `place` before
  int64_t place = kNone;      // BACKWARD begins to write gradients of the unit's bucket, there
  int combine = kNone;        // the action that makes the sum
  // Buckets of which BACKWARD has written all when it comes to the sum, where gradients are whole.
  std::vector<int> written = {};
  friend bool operator==(const Entry&, const Entry&) = default;
};

// The moment at which a pass comes to a use.
struct Point {
  int pass = kNone;  // an action
  int entry = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

// The bodies of actions. `bucket` is a number in Program::buckets, and `place` is where it lies in
// its arena, in blocks.

// FORWARD; BACKWARD, whole or one of its halves.
struct Pass {
  StagePass of;                // its micro-batch is this rank's: 0 .. accumulation - 1
  int slot = kNone;            // gradient buffer that BACKWARD writes, where gradients are whole
  std::vector<Merge> merges;   // of whole buffers, behind it
  std::vector<Entry> entries;  // in their order
};

// SEND, RECV.
struct Transfer {
  bool is_send = false;
  Handed what;
  int place = kNone;  // of the pipeline, where the rank is that it goes to or comes from
  int64_t bytes = 0;
};

// The collective of an action.
struct Exchange {
  Collective collective = Collective::kAllReduce;
  int group = 0;            // of Program::groups
  int64_t bytes = 0;        // of what is exchanged, whole
  int64_t padding = kNone;  // where its copy lies, in bytes (BytesOfCopy); kNone: it works in place
};

struct Reduce {
  int bucket = 0;
  std::vector<Merge> merges;  // of the bucket's blocks, before the collective
  // It waits for this BACKWARD's gradients of the bucket's parameters, not for the whole pass; they
  // are there when the pass comes to Action::at, if that is of it.
  int backward = kNone;
  // Streamed gradients come from this pass, and lie at `place` until they are reduced.
  int stage = 0;
  int64_t micro_batch = kNone;
  int64_t place = kNone;  // kNone: gradients are whole
  Exchange exchange;
};
struct Replicate {
  int bucket = 0;
  Exchange exchange;
};
struct Combine {
  StagePass of;
  int unit = kNone;  // in whose use it is
  Exchange exchange;
};
struct SumLoss {
  Exchange exchange;
};
struct ShareLoss {
  int giver = 0;  // rank of the world
  Exchange exchange;
};
struct Norm {
  // The squares of all ranks are added: of those with the same sums the first gives them. Else each
  // rank has them all, and makes the norm by itself.
  bool is_shared = false;
};
struct SumSquares {
  Exchange exchange;
};
struct Clip {};
struct Update {
  int bucket = 0;
};
struct Unshard {
  int bucket = 0;
  int64_t place = kNone;   // kNone: parameters are held whole
  bool secondary = false;  // from the shards that a RESHARD kept
  Exchange exchange;
};
struct Reshard {
  int bucket = 0;
  int64_t place = 0;
  int unshard = kNone;     // the action whose parameters it gives up
  bool secondary = false;  // it keeps a shard
};

using ActionBody = std::variant<Pass, Transfer, Reduce, Replicate, Combine, SumLoss, ShareLoss,
                                Norm, SumSquares, Clip, Update, Unshard, Reshard>;

struct Action {
  ActionBody body;
  std::vector<int> after;  // earlier actions of this program that must be done
  Point at;                // the moment from which on it may begin, if any
  // Activations: kept from its start on; no longer kept once it is done; and needed beside those
  // that are kept while it runs.
  int64_t keeps_bytes = 0;
  int64_t frees_bytes = 0;
  int64_t works_in_bytes = 0;

  ActionKind kind() const;
  // The body as this type. Where it is another, If gives null, and As ends the process.
  template <typename Body>
  const Body* If() const {
    return std::get_if<Body>(&body);
  }
  template <typename Body>
  const Body& As() const {
    return std::get<Body>(body);
  }
};

// The blocks of a stage that have gradients.
struct StageBlocks {
  int stage = 0;
  BlockRange blocks;
  friend bool operator==(const StageBlocks&, const StageBlocks&) = default;
};

struct Program {
  Mesh mesh;
  int rank = 0;
  StateTypes types;
  // Along which dimensions the ranks lie that it shares a communicator with; 0: the world. All
  // ranks of a mesh have as many groups, in the same order.
  std::vector<Dimensions> groups;
  std::vector<Action> actions;  // in the order of launch
  ArenaBytes held = {};         // at all times
  // How this rank adds its micro-batches. The sum of the roots over all ranks is the gradient
  // (Communicator::AllReduceSubtrees); the first root's slot gets it. A program that streams
  // gradients has no slots.
  OrderedSums sums;
  bool ordered = false;
  std::vector<StageBlocks> stages;  // of this rank, ascending
  // Those of gradients, in the order of their reduction; then those of frozen parameters.
  std::vector<Bucket> buckets;
  // [frozen][unit]; kNone: the unit is of another stage, or has no such parameters.
  std::array<std::vector<int>, 2> bucket_of_unit;
  LearnedBlocks learned;  // of the whole model
  // Gradients rest as shards too: what a micro-batch adds is reduced with its backward pass. Else
  // they are whole, in slots.
  bool streams_gradients = false;
  // Arenas, in blocks.
  std::array<int64_t, 2> gathered_blocks = {};  // [frozen]: each kind has an arena of its own
  int64_t unreduced_blocks = 0;
  int64_t padding_bytes = 0;
  int64_t live_elements = 0;  // of parameters that are gathered at once, at most

  int64_t leaves_per_rank() const { return static_cast<int64_t>(sums.leaves.size()); }
  // The number of the group along these dimensions, which is there.
  int GroupAlong(Dimensions along) const;
  int SizeOfGroup(int group) const { return mesh.SizeOf(groups[group]); }
  std::vector<int> RanksOfGroup(int group) const { return mesh.RanksOf(rank, groups[group]); }
  int PeerOf(const Transfer& transfer) const {
    return mesh.Moved(rank, Dimension::kPipeline, transfer.place);
  }
};

// The collective of an action; null if it has none.
const Exchange* ExchangeOf(const Action& action);
Exchange* ExchangeOf(Action& action);
// The uses and sums of a pass; none of another action.
absl::Span<const Entry> EntriesOf(const Action& action);
// Whether any of them is a use.
bool HasUses(absl::Span<const Entry> entries);
// The BACKWARD whose gradients a REDUCE waits for; kNone: none, or it waits for all of it.
int BackwardOf(const Action& action);
// The bucket that it works on, or kNone; and which blocks of it.
int BucketOf(const Action& action);
BlockRange BlocksOf(const Action& action, const Program& program);

// The blocks of one of this rank's stages that have gradients.
BlockRange BlocksOfStage(const Program& program, int stage);

// Whether passes have uses of units (Pass::entries).
bool UsesMatter(const Program& program);

// The buckets of gradients.
absl::Span<const Bucket> LearnedBuckets(const Program& program);
// What this rank updates of each of them, and holds the moments of.
std::vector<BlockRange> OwnedBlocks(const Program& program);
// The blocks whose squares `rank` gives to the norm, where it has this program.
std::vector<BlockRange> NormedBlocks(int rank, const Norm& norm, const Program& program);
// The places of squares by block: in ordered mode those of each tensor rank, which all travel.
inline int64_t NumSquares(const Program& program) {
  return program.learned.count * (program.ordered ? program.mesh.tensor_ranks() : 1);
}
// What `rank` owns of a bucket, where it has this program.
BlockRange OwnedBy(int rank, const Bucket& bucket, const Program& program);
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
// Whether it is a unit of this rank's stages that has parameters.
inline bool HoldsUnit(const Program& program, int unit) {
  return program.bucket_of_unit[0][unit] != kNone || program.bucket_of_unit[1][unit] != kNone;
}
// Whether a block is one of this rank's stages, of any parameters.
bool HoldsBlock(const Program& program, int64_t block);

// The bytes of a collective's copy, one after the other for each root of a sum.
int64_t BytesOfCopy(const Action& action, const Program& program);

// Whether those copies lie where gradients were on their way: all of them are of updated parameters
// that are shared out, when every gradient of the step has been reduced.
bool PadsInUnreduced(const Program& program);

// "REDUCE bucket 2 blocks [10, 20) of dp": for people and for the hash.
std::string Describe(const Action& action, const Program& program);
// One line "action <n>=<what>" per action, with what it waits for.
std::string Describe(const Program& program);

}  // namespace muster::plan

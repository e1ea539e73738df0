#include "worker_runtime/plan/program.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

struct KindRow {
  absl::string_view name;
  Lane lane;
};
// [ActionKind]
constexpr KindRow kKinds[] = {{"FORWARD", Lane::kCompute},
                              {"BACKWARD", Lane::kCompute},
                              {"BACKWARD_INPUT", Lane::kCompute},
                              {"BACKWARD_WEIGHT", Lane::kCompute},
                              {"SEND", Lane::kPeer},
                              {"RECV", Lane::kPeer},
                              {"REDUCE", Lane::kReduce},
                              {"REPLICATE", Lane::kReduce},
                              {"COMBINE", Lane::kReduce},
                              {"LOSS", Lane::kReduce},
                              {"SHARE_LOSS", Lane::kReduce},
                              {"NORM", Lane::kCompute},
                              {"SQUARES", Lane::kReduce},
                              {"CLIP", Lane::kCompute},
                              {"UPDATE", Lane::kCompute},
                              {"UNSHARD", Lane::kGather},
                              {"RESHARD", Lane::kMemory}};
static_assert(std::size(kKinds) == kNumActionKinds);

// [Arena], [Collective]
constexpr absl::string_view kArenas[] = {"parameters",
                                         "gathered parameters",
                                         "gradients",
                                         "gradients to be reduced",
                                         "partial sums (ordered mode)",
                                         "optimizer",
                                         "buffers of collectives",
                                         "activations, at their peak"};
static_assert(std::size(kArenas) == kNumArenas);
constexpr absl::string_view kCollectives[] = {"all-reduce", "reduce-scatter", "all-gather"};

std::string BytesText(int64_t bytes) {
  return bytes > 0 ? absl::StrCat(", ", bytes, " bytes") : "";
}

// The stage and micro-batch that a pass is of, or what it hands on or streams.
template <typename OfPass>
std::string PassText(const OfPass& of) {
  if (of.micro_batch == kNone) return "";
  return absl::StrCat(" stage ", of.stage, " micro-batch ", of.micro_batch);
}

std::string BucketText(int bucket, BlockRange blocks) {
  if (blocks.num_blocks() == 0) return absl::StrCat(" bucket ", bucket);
  return absl::StrCat(" bucket ", bucket, " blocks [", blocks.begin, ", ", blocks.end, ")");
}

std::string SumText(const std::vector<Merge>& merges) {
  std::string text;
  for (const Merge& merge : merges) {
    absl::StrAppend(&text, " ", merge.left_slot, "+=", merge.right_slot);
  }
  return text;
}

std::string EntryText(const Entry& entry, bool is_bucket) {
  std::string text = entry.combine != kNone
                         ? absl::StrCat("  sums by ", entry.combine)
                         : absl::StrCat("  uses ", is_bucket ? "bucket " : "unit ", entry.unit);
  if (!entry.written.empty()) {
    absl::StrAppend(&text, ", with gradients of buckets ", absl::StrJoin(entry.written, " "));
  }
  if (!entry.unshards.empty()) {
    absl::StrAppend(&text, ", gathered by ", absl::StrJoin(entry.unshards, " "));
  }
  if (!entry.waits.empty()) absl::StrAppend(&text, ", after ", absl::StrJoin(entry.waits, " "));
  if (entry.place != kNone) absl::StrAppend(&text, ", gradients to place ", entry.place);
  return text;
}

template <typename AnyExchange, typename AnyAction>
AnyExchange* FindExchange(AnyAction& action) {
  return std::visit(
      [](auto& body) -> AnyExchange* {
        if constexpr (requires { body.exchange; }) return &body.exchange;
        return nullptr;
      },
      action.body);
}

ActionKind KindOf(const Pass& pass) {
  switch (pass.of.kind) {
    case PassKind::kForward:
      return ActionKind::kForward;
    case PassKind::kBackward:
      return ActionKind::kBackward;
    case PassKind::kInputGradient:
      return ActionKind::kBackwardInput;
    case PassKind::kWeightGradient:
      return ActionKind::kBackwardWeight;
  }
  return ActionKind::kForward;
}
ActionKind KindOf(const Transfer& transfer) {
  return transfer.is_send ? ActionKind::kSend : ActionKind::kRecv;
}
ActionKind KindOf(const Reduce&) { return ActionKind::kReduce; }
ActionKind KindOf(const Replicate&) { return ActionKind::kReplicate; }
ActionKind KindOf(const Combine&) { return ActionKind::kCombine; }
ActionKind KindOf(const SumLoss&) { return ActionKind::kLoss; }
ActionKind KindOf(const ShareLoss&) { return ActionKind::kShareLoss; }
ActionKind KindOf(const Norm&) { return ActionKind::kNorm; }
ActionKind KindOf(const SumSquares&) { return ActionKind::kSquares; }
ActionKind KindOf(const Clip&) { return ActionKind::kClip; }
ActionKind KindOf(const Update&) { return ActionKind::kUpdate; }
ActionKind KindOf(const Unshard&) { return ActionKind::kUnshard; }
ActionKind KindOf(const Reshard&) { return ActionKind::kReshard; }

}  // namespace

absl::string_view ToString(ActionKind kind) { return kKinds[static_cast<size_t>(kind)].name; }
Lane LaneOf(ActionKind kind) { return kKinds[static_cast<size_t>(kind)].lane; }

absl::string_view ToString(Arena arena) { return kArenas[static_cast<size_t>(arena)]; }

int64_t& At(ArenaBytes& bytes, Arena arena) { return bytes[static_cast<size_t>(arena)]; }
int64_t At(const ArenaBytes& bytes, Arena arena) { return bytes[static_cast<size_t>(arena)]; }
int64_t TotalOf(const ArenaBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

absl::string_view ToString(Collective collective) {
  return kCollectives[static_cast<size_t>(collective)];
}

ActionKind Action::kind() const {
  return std::visit([](const auto& own) { return KindOf(own); }, body);
}

int Program::GroupAlong(Dimensions along) const {
  const auto found = std::find(groups.begin(), groups.end(), mesh.Spread(along));
  MUSTER_CHECK(found != groups.end());
  return static_cast<int>(found - groups.begin());
}

const Exchange* ExchangeOf(const Action& action) { return FindExchange<const Exchange>(action); }
Exchange* ExchangeOf(Action& action) { return FindExchange<Exchange>(action); }

absl::Span<const Entry> EntriesOf(const Action& action) {
  const Pass* const pass = action.If<Pass>();
  return pass == nullptr ? absl::Span<const Entry>() : pass->entries;
}

int BackwardOf(const Action& action) {
  const Reduce* const reduce = action.If<Reduce>();
  return reduce == nullptr ? kNone : reduce->backward;
}

int BucketOf(const Action& action) {
  return std::visit(
      [](const auto& body) {
        if constexpr (requires { body.bucket; }) return body.bucket;
        return kNone;
      },
      action.body);
}

BlockRange BlocksOf(const Action& action, const Program& program) {
  if (BucketOf(action) == kNone) return {};
  const Bucket& bucket = program.buckets[BucketOf(action)];
  return action.If<Replicate>() || action.If<Update>() ? bucket.owned : bucket.blocks;
}

BlockRange BlocksOfStage(const Program& program, int stage) {
  for (const StageBlocks& own : program.stages) {
    if (own.stage == stage) return own.blocks;
  }
  return {};
}

bool HasUses(absl::Span<const Entry> entries) {
  return std::any_of(entries.begin(), entries.end(),
                     [](const Entry& entry) { return entry.combine == kNone; });
}

bool UsesMatter(const Program& program) {
  return program.streams_gradients ||
         std::any_of(program.buckets.begin(), program.buckets.end(),
                     [](const Bucket& bucket) { return bucket.gathered; });
}

absl::Span<const Bucket> LearnedBuckets(const Program& program) {
  const auto frozen = std::partition_point(program.buckets.begin(), program.buckets.end(),
                                           [](const Bucket& bucket) { return !bucket.frozen; });
  return {program.buckets.data(), static_cast<size_t>(frozen - program.buckets.begin())};
}

std::vector<BlockRange> OwnedBlocks(const Program& program) {
  std::vector<BlockRange> owned;
  for (const Bucket& bucket : LearnedBuckets(program)) owned.push_back(bucket.owned);
  return owned;
}

std::vector<BlockRange> NormedBlocks(int rank, const Norm& norm, const Program& program) {
  const Mesh& mesh = program.mesh;
  const bool gives_all = !norm.is_shared || mesh.CoordinateOf(rank, Dimension::kTensor) == 0;
  std::vector<BlockRange> normed;
  for (const Bucket& bucket : LearnedBuckets(program)) {
    const int copies = bucket.groups.copies;
    if (norm.is_shared && copies != kNone && mesh.IndexOf(rank, program.groups[copies]) != 0) {
      continue;
    }
    const BlockRange owned = OwnedBy(rank, bucket, program);
    if (gives_all) {
      normed.push_back(owned);
      continue;
    }
    for (const BlockRange& cut : program.learned.cut) {
      if (!cut.Overlaps(owned)) continue;
      normed.push_back({std::max(cut.begin, owned.begin), std::min(cut.end, owned.end)});
    }
  }
  return normed;
}

BlockRange OwnedBy(int rank, const Bucket& bucket, const Program& program) {
  const Shards& shards = bucket.groups.shards;
  if (shards.size == 1) return bucket.blocks;
  const Dimensions along = program.groups[shards.group];
  return ShardOf(bucket.blocks, program.mesh.IndexOf(rank, along), shards.size);
}

std::vector<int> BucketsOfUnit(const Program& program, int unit) {
  std::vector<int> buckets;
  for (const std::vector<int>& bucket_of_unit : program.bucket_of_unit) {
    if (bucket_of_unit[unit] != kNone) buckets.push_back(bucket_of_unit[unit]);
  }
  return buckets;
}

bool UsesBuckets(const Program& program) {
  return !program.buckets.empty() && program.buckets.front().entered;
}

int UseOf(const Program& program, int parameter, int unit) {
  if (!UsesBuckets(program)) return unit;
  const absl::Span<const Bucket> learned = LearnedBuckets(program);
  const auto found = std::find_if(learned.begin(), learned.end(), [&](const Bucket& bucket) {
    return bucket.first_parameter <= parameter && parameter < bucket.end_parameter;
  });
  return found == learned.end() ? kNone : static_cast<int>(found - learned.begin());
}

std::vector<int> BucketsOfUse(const Program& program, int use) {
  if (UsesBuckets(program)) return {use};
  return BucketsOfUnit(program, use);
}

int GradientBucketOf(const Program& program, int use) {
  return UsesBuckets(program) ? use : program.bucket_of_unit[false][use];
}

bool HoldsBlock(const Program& program, int64_t block) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [&](const Bucket& bucket) {
    return bucket.blocks.begin <= block && block < bucket.blocks.end;
  });
}

int64_t BytesOfCopy(const Action& action, const Program& program) {
  return ExchangeOf(action)->bytes *
         (action.If<Reduce>() ? static_cast<int64_t>(program.sums.root_slots.size()) : 1);
}

bool PadsInUnreduced(const Program& program) {
  const int64_t room = program.unreduced_blocks * kBlockElements * BytesOf(program.types.gradients);
  if (program.padding_bytes > room) return false;
  return std::all_of(program.actions.begin(), program.actions.end(), [&](const Action& action) {
    const Exchange* const exchange = ExchangeOf(action);
    return exchange == nullptr || exchange->padding == kNone || action.If<Unshard>();
  });
}

std::string Describe(const Action& action, const Program& program) {
  std::string text(ToString(action.kind()));
  const auto append = [&](const auto& body) {
    if constexpr (requires { body.of; }) text += PassText(body.of);
    if constexpr (requires { body.what; }) text += PassText(body.what);
    if constexpr (requires { body.micro_batch; }) text += PassText(body);
    if constexpr (requires { body.unit; }) absl::StrAppend(&text, " unit ", body.unit);
    if constexpr (requires { body.bucket; }) {
      text += BucketText(body.bucket, BlocksOf(action, program));
    }
    if constexpr (requires { body.bucket, body.place; }) {
      if (body.place != kNone) absl::StrAppend(&text, " at place ", body.place);
    }
    if constexpr (requires { body.unshard; }) absl::StrAppend(&text, " of ", body.unshard);
    if constexpr (requires { body.secondary; }) {
      if (body.secondary) absl::StrAppend(&text, ", secondary shards");
    }
    if constexpr (requires { body.slot; }) {
      if (body.slot != kNone) absl::StrAppend(&text, " to slot ", body.slot);
    }
    if constexpr (requires { body.merges; }) text += SumText(body.merges);
    if constexpr (requires { body.is_send; }) {
      absl::StrAppend(&text, " ", ToString(body.what.payload),
                      body.is_send ? " to rank " : " from rank ", program.PeerOf(body),
                      BytesText(body.bytes));
    }
    if constexpr (requires { body.exchange; }) {
      const auto& [collective, group, bytes, padding] = body.exchange;
      absl::StrAppend(&text, " ", ToString(collective), " in ",
                      program.mesh.NameOf(program.rank, program.groups[group]), BytesText(bytes));
    }
  };
  std::visit(append, action.body);
  return text;
}

std::string Describe(const Program& program) {
  std::string text;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    absl::StrAppend(&text, "action ", i, "=", Describe(action, program));
    if (!action.after.empty()) {
      absl::StrAppend(&text, ", after ", absl::StrJoin(action.after, " "));
    }
    if (const Reduce* reduce = action.If<Reduce>(); reduce && reduce->backward != kNone) {
      const Bucket& bucket = program.buckets[reduce->bucket];
      absl::StrAppend(&text, ", with gradients ", bucket.first_parameter, " to ",
                      bucket.end_parameter - 1, " of ", reduce->backward);
    }
    if (action.at.pass != kNone) {
      absl::StrAppend(&text, ", with use ", action.at.entry, " of ", action.at.pass);
    }
    text.push_back('\n');
    for (const Entry& entry : EntriesOf(action)) {
      absl::StrAppend(&text, EntryText(entry, UsesBuckets(program)), "\n");
    }
  }
  return text;
}

}  // namespace muster::plan

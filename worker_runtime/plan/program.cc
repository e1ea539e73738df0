#include "worker_runtime/plan/program.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::plan {
namespace {

std::string SumText(const std::vector<Merge>& merges) {
  std::string text;
  for (const Merge& merge : merges) {
    absl::StrAppend(&text, " ", merge.left_slot, "+=", merge.right_slot);
  }
  return text;
}

std::string EntryText(const Entry& entry, bool is_bucket) {
  std::string text = absl::StrCat("  uses ", is_bucket ? "bucket " : "unit ", entry.unit);
  if (!entry.unshards.empty()) {
    absl::StrAppend(&text, ", gathered by ", absl::StrJoin(entry.unshards, " "));
  }
  if (!entry.waits.empty()) absl::StrAppend(&text, ", after ", absl::StrJoin(entry.waits, " "));
  if (entry.place != kNone) absl::StrAppend(&text, ", gradients to place ", entry.place);
  return text;
}

}  // namespace

absl::string_view ToString(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "FORWARD";
    case ActionKind::kBackward:
      return "BACKWARD";
    case ActionKind::kBackwardInput:
      return "BACKWARD_INPUT";
    case ActionKind::kBackwardWeight:
      return "BACKWARD_WEIGHT";
    case ActionKind::kSend:
      return "SEND";
    case ActionKind::kRecv:
      return "RECV";
    case ActionKind::kReduce:
      return "REDUCE";
    case ActionKind::kReplicate:
      return "REPLICATE";
    case ActionKind::kLoss:
      return "LOSS";
    case ActionKind::kShareLoss:
      return "SHARE_LOSS";
    case ActionKind::kNorm:
      return "NORM";
    case ActionKind::kSquares:
      return "SQUARES";
    case ActionKind::kClip:
      return "CLIP";
    case ActionKind::kUpdate:
      return "UPDATE";
    case ActionKind::kUnshard:
      return "UNSHARD";
    case ActionKind::kReshard:
      return "RESHARD";
  }
  return "?";
}

absl::string_view ToString(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kReduce:
      return "reduce";
    case Lane::kGather:
      return "gather";
    case Lane::kPeer:
      return "peer";
    case Lane::kMemory:
      return "memory";
  }
  return "?";
}

Lane LaneOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kNorm:
    case ActionKind::kClip:
    case ActionKind::kUpdate:
      return Lane::kCompute;
    case ActionKind::kReduce:
    case ActionKind::kReplicate:
    case ActionKind::kLoss:
    case ActionKind::kShareLoss:
    case ActionKind::kSquares:
      return Lane::kReduce;
    case ActionKind::kReshard:
      return Lane::kMemory;
    case ActionKind::kUnshard:
      return Lane::kGather;
    case ActionKind::kSend:
    case ActionKind::kRecv:
      return Lane::kPeer;
  }
  return Lane::kCompute;
}

absl::string_view ToString(Payload payload) {
  switch (payload) {
    case Payload::kNothing:
      return "nothing";
    case Payload::kActivation:
      return "activation";
    case Payload::kGradient:
      return "gradient";
    case Payload::kTied:
      return "tied gradient";
    case Payload::kValue:
      return "tied value";
  }
  return "?";
}

absl::string_view ToString(Arena arena) {
  switch (arena) {
    case Arena::kParameters:
      return "parameters";
    case Arena::kGathered:
      return "gathered parameters";
    case Arena::kGradients:
      return "gradients";
    case Arena::kUnreduced:
      return "gradients to be reduced";
    case Arena::kPartialSums:
      return "partial sums (ordered mode)";
    case Arena::kOptimizer:
      return "optimizer";
    case Arena::kBuffers:
      return "buffers of collectives";
    case Arena::kActivations:
      return "activations, at their peak";
  }
  return "?";
}

int64_t& At(ArenaBytes& bytes, Arena arena) { return bytes[static_cast<size_t>(arena)]; }
int64_t At(const ArenaBytes& bytes, Arena arena) { return bytes[static_cast<size_t>(arena)]; }
int64_t TotalOf(const ArenaBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

absl::string_view ToString(Collective collective) {
  switch (collective) {
    case Collective::kAlone:
      return "alone";
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kTransfer:
      return "transfer";
  }
  return "?";
}

BlockRange BlocksOfStage(const Program& program, int stage) {
  for (const StageBlocks& own : program.stages) {
    if (own.stage == stage) return own.blocks;
  }
  return {};
}

bool UsesMatter(const Program& program) {
  return program.streams_gradients ||
         std::any_of(program.buckets.begin(), program.buckets.end(),
                     [](const Bucket& bucket) { return bucket.gathered; });
}

absl::Span<const Bucket> LearnedBuckets(const Program& program) {
  const auto frozen = std::find_if(program.buckets.begin(), program.buckets.end(),
                                   [](const Bucket& bucket) { return bucket.frozen; });
  return {program.buckets.data(), static_cast<size_t>(frozen - program.buckets.begin())};
}

std::vector<BlockRange> OwnedBlocks(const Program& program) {
  std::vector<BlockRange> owned;
  for (const Bucket& bucket : LearnedBuckets(program)) owned.push_back(bucket.owned);
  return owned;
}

std::vector<int> BucketsOfUnit(const Program& program, int unit) {
  std::vector<int> buckets;
  for (const int b : {program.bucket_of_unit[unit], program.frozen_bucket_of_unit[unit]}) {
    if (b != kNone) buckets.push_back(b);
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
  return UsesBuckets(program) ? use : program.bucket_of_unit[use];
}

int BucketBehind(const Program& program, int bucket) {
  const int64_t end = program.buckets[bucket].blocks.end;
  const auto found = std::find_if(
      program.buckets.begin(), program.buckets.end(),
      [&](const Bucket& other) { return other.head_elements > 0 && other.blocks.begin == end; });
  return found == program.buckets.end() ? kNone : static_cast<int>(found - program.buckets.begin());
}

int BucketBefore(const Program& program, int bucket) {
  if (program.buckets[bucket].head_elements == 0) return kNone;
  const int64_t begin = program.buckets[bucket].blocks.begin;
  const auto found = std::find_if(program.buckets.begin(), program.buckets.end(),
                                  [&](const Bucket& other) { return other.blocks.end == begin; });
  return static_cast<int>(found - program.buckets.begin());
}

bool HoldsBlock(const Program& program, int64_t block) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [&](const Bucket& bucket) {
    return bucket.blocks.begin <= block && block < bucket.blocks.end;
  });
}

bool IsRounded(const Action& action, const Program& program) {
  const bool sums = action.kind == ActionKind::kReduce || action.kind == ActionKind::kReplicate;
  return sums && program.types.rounds_sums();
}

bool IsPadded(const Action& action, const Program& program) {
  if (IsRounded(action, program)) return true;
  const bool shares_out = action.collective == Collective::kReduceScatter ||
                          action.collective == Collective::kAllGather;
  return shares_out && action.place == kNone &&
         action.blocks.num_blocks() % program.shards.size != 0;
}

int64_t PaddingOf(const Action& action, const Program& program) {
  if (!IsPadded(action, program)) return 0;
  const bool sums = action.kind == ActionKind::kReduce;
  return action.bytes * (sums ? static_cast<int64_t>(program.root_slots.size()) : 1);
}

bool PadsInUnreduced(const Program& program) {
  const int64_t room = program.unreduced_blocks * kBlockElements * BytesOf(program.types.gradients);
  if (program.padding_bytes > room) return false;
  return std::all_of(program.actions.begin(), program.actions.end(), [&](const Action& action) {
    return action.kind == ActionKind::kUnshard || !IsPadded(action, program);
  });
}

std::string Describe(const Action& action, const Program& program) {
  std::string text(ToString(action.kind));
  if (action.micro_batch != kNone) {
    absl::StrAppend(&text, " stage ", action.stage, " micro-batch ", action.micro_batch);
  }
  if (action.bucket != kNone) absl::StrAppend(&text, " bucket ", action.bucket);
  if (action.blocks.num_blocks() > 0) {
    absl::StrAppend(&text, " blocks [", action.blocks.begin, ", ", action.blocks.end, ")");
  }
  if (action.place != kNone) absl::StrAppend(&text, " at place ", action.place);
  if (action.unshard != kNone) absl::StrAppend(&text, " of ", action.unshard);
  if (action.secondary) absl::StrAppend(&text, ", secondary shards");
  if (action.slot != kNone) absl::StrAppend(&text, " to slot ", action.slot);
  absl::StrAppend(&text, SumText(action.merges));
  if (action.collective == Collective::kTransfer) {
    absl::StrAppend(&text, " ", ToString(action.payload),
                    action.kind == ActionKind::kSend ? " to rank " : " from rank ", action.peer);
  } else if (action.collective != Collective::kAlone) {
    absl::StrAppend(&text, " ", ToString(action.collective), " in ",
                    program.groups[action.group].name);
  }
  if (action.bytes > 0) absl::StrAppend(&text, ", ", action.bytes, " bytes");
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
    if (action.backward != kNone) {
      absl::StrAppend(&text, ", with gradients ", action.first_parameter, " to ",
                      action.end_parameter - 1, " of ", action.backward);
    }
    if (action.at.pass != kNone) {
      absl::StrAppend(&text, ", with use ", action.at.entry, " of ", action.at.pass);
    }
    text.push_back('\n');
    for (const Entry& entry : action.entries) {
      absl::StrAppend(&text, EntryText(entry, UsesBuckets(program)), "\n");
    }
  }
  return text;
}

}  // namespace muster::plan

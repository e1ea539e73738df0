#include "worker_runtime/plan/program.h"

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

}  // namespace

absl::string_view ToString(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "FORWARD";
    case ActionKind::kBackward:
      return "BACKWARD";
    case ActionKind::kSend:
      return "SEND";
    case ActionKind::kRecv:
      return "RECV";
    case ActionKind::kReduce:
      return "REDUCE";
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
  }
  return "?";
}

Lane LaneOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kNorm:
    case ActionKind::kClip:
    case ActionKind::kUpdate:
      return Lane::kCompute;
    case ActionKind::kReduce:
    case ActionKind::kLoss:
    case ActionKind::kShareLoss:
    case ActionKind::kSquares:
      return Lane::kReduce;
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
    case Arena::kGradients:
      return "gradients";
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

std::string Describe(const Action& action, const Program& program) {
  std::string text(ToString(action.kind));
  if (action.micro_batch != kNone) {
    absl::StrAppend(&text, " stage ", action.stage, " micro-batch ", action.micro_batch);
  }
  if (action.bucket != kNone) absl::StrAppend(&text, " bucket ", action.bucket);
  if (action.blocks.num_blocks() > 0) {
    absl::StrAppend(&text, " blocks [", action.blocks.begin, ", ", action.blocks.end, ")");
  }
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
    text.push_back('\n');
  }
  return text;
}

}  // namespace muster::plan

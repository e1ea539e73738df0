// Lowers the order in which ranks compute to what they hand to each other.
//
// Each transfer is named by what it carries, (stage, micro-batch, kind), so that two ranks which
// are each other's next and previous one cannot mistake one for the other.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "worker_runtime/plan/schedules/schedule.h"

namespace muster::plan {

enum class HandoverKind : uint8_t {
  kActivation,  // to the stage behind
  kGradient,    // to the stage before
};

struct Handover {
  HandoverKind kind = HandoverKind::kActivation;
  int stage = 0;  // that made it
  int64_t micro_batch = 0;
  friend auto operator<=>(const Handover&, const Handover&) = default;
};

struct SendStep {
  Handover what;
  int to = 0;  // a rank
  friend bool operator==(const SendStep&, const SendStep&) = default;
};
struct ReceiveStep {
  Handover what;
  int from = 0;  // a rank
  friend bool operator==(const ReceiveStep&, const ReceiveStep&) = default;
};
// A rank computes its passes one after the other, and starts its transfers in their order: a send
// once the pass that makes it is done, a receive at once.
using ScheduleStep = std::variant<StagePass, SendStep, ReceiveStep>;
// "F0.3", "SEND activation of F0.3 to rank 1", "RECV gradient of stage 1, micro-batch 3, from ..."
std::string ToString(const ScheduleStep& step);

// [ranks]
using LoweredSchedule = std::vector<std::vector<ScheduleStep>>;

// What a pass waits for beside its own stage's earlier passes, and what it makes for another stage;
// `kind` of a handover that does not exist is of a stage that does not.
struct PassLinks {
  bool needs = false;
  Handover needed;
  bool makes = false;
  Handover made;
  int made_for = 0;  // a stage
};
PassLinks LinksOf(const StagePass& pass, int num_stages);

// `schedule` has each pass once, on the rank of its stage (CheckPasses). A receive comes before the
// pass that waits for it, and before that what its sender sends earlier: both sides have one order.
// Stages of one rank hand on without a transfer.
LoweredSchedule LowerSchedule(const Schedule& schedule);

}  // namespace muster::plan

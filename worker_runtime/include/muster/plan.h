// What a training job does with its parameters, gradients and optimizer state, as data.
//
//   MUSTER_ASSIGN_OR_RETURN(Plan plan, PlanPreset("ddp"));
//   plan.accumulation = 4;
//   plan.learning_rate = {.peak = 3e-4, .warmup_steps = 100, .total_steps = 10'000};
//
// Every data-parallel strategy is one state machine with a placement and a residency for each of
// three states; the names people know (ddp, zero-2, fsdp) are presets of it. All ranks
// must have equal plans: the engine compares them before the first step.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/dtype.h"
#include "muster/gather_plan.h"
#include "muster/recompute.h"
#include "muster/update.h"

namespace muster {

// The holders of a state: every rank holds all of it, or each rank its shard.
enum class Placement : uint8_t { kReplicate, kShard };
// The place where a state rests between its uses.
enum class Residency : uint8_t { kDevice, kCpu, kNvme };

absl::string_view ToString(Placement placement);
absl::string_view ToString(Residency residency);

struct StatePlan {
  Placement placement = Placement::kReplicate;
  Residency residency = Residency::kDevice;
  friend bool operator==(const StatePlan&, const StatePlan&) = default;
};

// How gradients of ranks and micro-batches are added (worker_runtime/README.md "Bits").
enum class SumMode : uint8_t {
  kFast,     // as is quickest: each rank adds its micro-batches, the ranks add in a ring
  kOrdered,  // one fixed tree over all micro-batches: the same bits however the ranks cut them
};
absl::string_view ToString(SumMode mode);

// When sharded gradients are reduced: with each micro-batch, whose gradients then never lie whole,
// or once in a step, which sends less where there are several.
enum class GradientReduction : uint8_t {
  kChosen,  // by what both cost, and by memory_bytes_max where only one fits
  kEachMicroBatch,
  kOnce,
};
absl::string_view ToString(GradientReduction reduction);

// Gradients are reduced in buckets of at most `bytes_max`, last parameter first. The first bucket
// is closed once it has `first_bytes`, so that its reduction starts early.
struct BucketSizes {
  int64_t bytes_max = 25 << 20;
  int64_t first_bytes = 1 << 20;
  friend bool operator==(const BucketSizes&, const BucketSizes&) = default;
};

// What units of a model cost where it is cut into stages, in numbers of any one measure.
struct UnitCost {
  std::string units;  // a pattern: * stands for any letters, as in "h.*"
  double cost = 0;    // of each
  friend bool operator==(const UnitCost&, const UnitCost&) = default;
};

// "embedding:0.5 h.*:12 head:4", as --unit_costs takes them, and one of them back.
//
// Errors: kInvalidArgument: says what was expected.
std::string ToString(absl::Span<const UnitCost> costs);
absl::StatusOr<UnitCost> ParseUnitCost(absl::string_view text);

struct Plan {
  // A value of `shard_ranks` and `gathering.secondary_ranks` that stands for the ranks of one node;
  // CompletePlan puts their number in its place.
  static constexpr int64_t kRanksOfNode = -1;

  std::string preset = "ddp";
  StatePlan parameters;
  StatePlan gradients;
  StatePlan optimizer;
  PlanDTypes dtypes;
  // Stages of a pipeline (muster/pipeline.h), each of size / stages ranks that train it under the
  // rest of this plan; 0: as many as there are ranks, or groups of tensor ranks.
  int64_t stages = 1;
  // The order in which the stages work on micro-batches, by name: "1f1b", "gpipe", "interleaved",
  // "zb-h1", "zbv" or "dualpipev"; or a schedule itself, as `muster plan --schedule_form=file`
  // prints it.
  std::string schedule = "1f1b";
  // Each rank has so many stages in turn, so that the model is cut into as many times `stages`; 0:
  // as many as the schedule usually has, 2 of interleaved, zbv and dualpipev, else 1.
  int64_t stages_per_rank = 0;
  // The model is cut so that the costliest stage costs as little as possible. A unit costs what the
  // first that fits its name says; of an empty list it costs as many operations as its products
  // have. MeasureUnitCosts (muster/pipeline.h) makes a list.
  std::vector<UnitCost> unit_costs;
  // What is sharded is sharded over so many ranks, neighbours, and replicated over such groups.
  // 0: over all that train the same parameters.
  int64_t shard_ranks = 0;
  // Matrices of layers are cut over so many ranks, neighbours, that compute a layer together; the
  // model is declared in a store of such ranks (muster/tensor_ranks.h).
  int64_t tensor_ranks = 1;
  GatherPlan gathering;
  GradientReduction gradient_reduction = GradientReduction::kChosen;
  int64_t memory_bytes_max = 0;  // of a rank; 0: not known

  SumMode mode = SumMode::kFast;
  int64_t accumulation = 1;  // micro-batches per rank and step
  BucketSizes buckets;
  bool overlap = true;  // reduce while the backward pass still runs
  Recompute recompute;  // for models that ask Tape::recompute, as Decoder does

  UpdateRule update;
  LearningRateSchedule learning_rate;
  std::vector<ParameterGroup> groups;
  LossScaling loss_scaling;
  double max_gradient_norm = 1;  // of the whole gradient; 0: not clipped
  uint64_t seed = 1;             // of initial values

  friend bool operator==(const Plan&, const Plan&) = default;

  // kInvalidArgument naming the field, its value and what was expected.
  absl::Status Validate() const;
};

// The preset of one of the names that people know it by ("ddp" is "no_shard" and "zero-0" too).
// Upper and lower case are alike, and so are - and _.
//
// Errors: kInvalidArgument: no such name (with the nearest one).
absl::StatusOr<Plan> PlanPreset(absl::string_view name);
// Those of this version, each under one name.
std::vector<std::string> PlanPresetNames();

// Puts `ranks_of_node` where the plan says "the ranks of a node".
Plan CompletePlan(Plan plan, int64_t ranks_of_node);

// Stages of so many ranks. Errors: kInvalidArgument: they cannot be divided into plan.stages.
absl::StatusOr<int> NumStages(const Plan& plan, int world_size);

// Every field as text, in one order, numbers exact: equal lists mean equal plans. What the engine
// hashes and compares, and what `muster plan` prints first.
using PlanText = std::vector<std::pair<std::string, std::string>>;
PlanText Describe(const Plan& plan);

}  // namespace muster

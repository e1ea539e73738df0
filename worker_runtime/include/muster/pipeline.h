// Models in units, and how they are cut into the stages of a pipeline.
//
//   MUSTER_ASSIGN_OR_RETURN(auto gpt, Decoder::Create(config, store));
//   plan.stages = 4;  // 1: no pipeline; plan.schedule is their order
//   MUSTER_ASSIGN_OR_RETURN(auto engine,
//                           Engine::Create(*world, store, plan, gpt->Units(), {.batch = 8}));
//   MUSTER_ASSIGN_OR_RETURN(StepResult result, engine->Step(*reader));
//
// Rank s * (size / stages) + r of the world is replica r of stage s, or of the stages at place s.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/layers.h"
#include "muster/parameter.h"
#include "muster/plan.h"
#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster {

// Units [first, end) of a store (ParameterStore::BeginUnit).
struct UnitRange {
  int first = 0;
  int end = 0;
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};

// What a stage computes from what it receives: a loss in the last stage, else one activation or
// several, which it passes on, each once. One that was received may be passed on as it is, and a
// constant (an Activation that is a value alone) may be among them, whose gradient is dropped.
struct StageOutput {
  std::vector<Activation> passed_on;
  Loss loss;
};

// A micro-batch. Of a sample only the sizes matter: its ids must not be read.
struct ModelInput {
  TokenBatch tokens;
  absl::Span<const int32_t> targets;  // of each token
};

// A model whose units run one after the other, so that it may be cut between any two: computes
// `units` from what those before them passed on, which is empty where `units` begin with the first.
// What the last unit makes is the loss. A unit may use parameters of one that was declared before
// it, as a tied head does. How many activations a unit passes on, and of which shapes, may differ
// from unit to unit; they are of the store's dtype.
using UnitModel = std::function<absl::StatusOr<StageOutput>(
    Tape& tape, UnitRange units, const ModelInput& input, absl::Span<const Activation> received)>;

// The cut of a model into stages. Engine::Create finds it out from a UnitModel.
struct PipelineCut {
  // [stages]: of each stage, the first of its units; 0 comes first.
  std::vector<int> first_units = {0};
  // [stages]: parameters of an earlier stage that a stage uses too, as tied embeddings; all of one
  // stage.
  std::vector<std::vector<const Parameter*>> borrowed = {{}};
  // [stages]: of each activation that a stage receives per micro-batch; none of the first.
  std::vector<std::vector<Shape>> received = {{}};
  int stages() const { return static_cast<int>(first_units.size()); }
};

// What the units of a model cost on the store's device, in milliseconds of a forward and a backward
// pass over a micro-batch, for Plan::unit_costs. Units with parameters of the same shapes and as
// many operations cost alike: one of each kind is run, four times, and the fastest run counts. Each
// is given memory while it runs; tensor ranks do not exchange. Ranks measure different numbers, so
// one rank's have to be taken by all (FromRank, muster/agreement.h).
//
// Errors: those of `model`; kFailedPrecondition: an engine trains the store; kInvalidArgument:
//         groups of the plan that do not fit the model, or a unit before the last that passes
//         nothing on.
absl::StatusOr<std::vector<UnitCost>> MeasureUnitCosts(ParameterStore& store, const Plan& plan,
                                                       const UnitModel& model, int64_t batch,
                                                       int64_t sequence);

}  // namespace muster

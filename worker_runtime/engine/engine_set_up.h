// Everything that a rank's program is made from.
//
// Threads: thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "muster/pipeline.h"
#include "muster/plan.h"
#include "muster/tensor.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/schedules/schedule.h"
#include "worker_runtime/plan/update_plan.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster {

// What a stage of this rank does with a micro-batch.
using StageTracer = absl::FunctionRef<absl::StatusOr<plan::UseTrace>(int stage)>;

struct EngineSetUp {
  UnitModel model;               // null where the program calls its stages itself
  std::vector<UnitRange> units;  // of each stage
  std::vector<plan::ParameterInfo> parameters;
  std::vector<plan::ParameterUpdate> updates;  // of each
  plan::BlockLayout layout;
  std::vector<plan::StageInfo> stages;
  plan::Mesh mesh;
  plan::Schedule schedule;                   // over the places of the mesh
  bool learns_order = false;                 // of gradients, from the first step
  std::vector<std::vector<Shape>> received;  // [stages]: see PipelineCut

  int num_stages() const { return static_cast<int>(stages.size()); }
  bool is_last(int stage) const { return stage + 1 == num_stages(); }
  // The place of a stage, which its replicas are at.
  int PlaceOf(int stage) const { return schedule.rank_of_stage[stage]; }
  int StageOfUnit(int unit) const {
    return plan::StageOfBlock(stages, plan::FirstBlockOf(layout, unit));
  }
  int StageOfParameter(int parameter) const {
    return plan::StageOfBlock(stages, layout.OffsetOf(parameter) / plan::kBlockElements);
  }

  // Tokens of a micro-batch; 0: nothing says how many.
  int64_t declared_tokens() const { return stages.back().trace.num_tokens; }

  plan::ProgramInput InputOf(const Plan& plan) const {
    return {.plan = plan,
            .parameters = parameters,
            .types = plan::TypesOf(plan, parameters),
            .mesh = mesh,
            .stages = stages,
            .schedule = &schedule};
  }
};

// What this version executes; the plan's types know more.
//
// Errors: kUnimplemented: names it; kInvalidArgument: types of parameters that do not go together.
absl::Status CheckSupported(const Plan& plan, const ParameterStore& store, const Device& device);
absl::Status CheckHasParameters(const ParameterStore& store);
// The model was declared for the tensor ranks that the plan says, with `rank` of the world.
absl::Status CheckTensorRanks(const ParameterStore& store, const plan::Mesh& mesh, int rank);
// A unit that is larger than what may be gathered at once could never be.
absl::Status CheckLiveLimit(const Plan& plan, const plan::BlockLayout& layout);
// `plan` says how many stages there are, unless the cut alone does.
absl::Status CheckStages(const Plan& plan, const PipelineCut& cut, int world_size);
absl::Status CheckCut(const ParameterStore& store, const PipelineCut& cut, int places,
                      int world_size);
// The scale of a loss is divided by the tokens of a micro-batch.
absl::Status CheckDeclaresTokens(const Plan& plan, const EngineSetUp& set_up);

// The cut of a model in units by plan.stages. Errors: kInvalidArgument: the plan, or the model
// cannot be cut so.
absl::StatusOr<PipelineCut> CutOf(ParameterStore& store, const Plan& plan, int world_size,
                                  const UnitModel& model, const ModelInput& sample);
// Errors: the schedule has no order for so many stages and micro-batches, or not for these stages.
absl::StatusOr<EngineSetUp> SetUpOf(const ParameterStore& store, const Plan& plan,
                                    const PipelineCut& cut, int world_size,
                                    const std::vector<plan::UseTrace>& traces);
// The own program for races, and those of all ranks together. Errors: kFailedPrecondition.
absl::Status ProvePrograms(const EngineSetUp& set_up, const Plan& plan, int own_rank);

}  // namespace muster

// A model in units as the stages of a pipeline: where it is cut, what each stage uses and takes,
// found out on the meta device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/plan.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::engine {

// A micro-batch without ids.
ModelInput SampleInput(int64_t batch, int64_t sequence);

// What each unit uses, by itself.
struct UnitUse {
  double products = 0;           // operations of them, forward
  std::vector<Shape> passed_on;  // the last unit's is empty
  std::vector<Parameter*> of_others;
};

// Errors: those of `model`; kInvalidArgument: a unit before the last passes nothing on.
absl::StatusOr<std::vector<UnitUse>> UsesOfUnits(ParameterStore& store, const Plan& plan,
                                                 const UnitModel& model, const ModelInput& sample);

// Cuts where plan.unit_costs say, or so that the stages' products take alike long. Parameters that
// a stage uses of an earlier one are borrowed.
//
// Errors: UsesOfUnits'; kInvalidArgument: costs that are not of these units, fewer units than
//         stages, a stage without anything to train, or uses that this version cannot cut (names
//         the parameter or the unit).
absl::StatusOr<PipelineCut> CutModel(ParameterStore& store, const Plan& plan, int stages,
                                     const UnitModel& model, const ModelInput& sample);

// The units of a stage.
UnitRange UnitsOf(const ParameterStore& store, const PipelineCut& cut, int stage);

// What each stage does with a micro-batch. Errors: those of `model`.
absl::StatusOr<std::vector<plan::UseTrace>> RecordStages(ParameterStore& store, const Plan& plan,
                                                         const PipelineCut& cut,
                                                         const UnitModel& model,
                                                         const ModelInput& sample,
                                                         const Device& meta = Device::Meta());

// The stages as programs see them. Shapes: traces [stages].
std::vector<plan::StageInfo> StagesOf(const ParameterStore& store, const plan::BlockLayout& layout,
                                      const PipelineCut& cut,
                                      absl::Span<const plan::UseTrace> traces);

}  // namespace muster::engine

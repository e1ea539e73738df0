// Everything that a rank's program is made from.
//
// Threads: thread-compatible.
#pragma once

#include <cstdint>
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
  plan::Schedule schedule;    // over the places of the mesh
  bool learns_order = false;  // of gradients, from the first step
  Shape boundary;             // of what one stage hands to the next, per micro-batch

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

  plan::ProgramInput InputOf(const Plan& plan, DType dtype) const {
    return {.plan = plan,
            .parameters = parameters,
            .types = plan::TypesOf(plan, dtype),
            .mesh = mesh,
            .stages = stages,
            .schedule = &schedule};
  }
};

}  // namespace muster

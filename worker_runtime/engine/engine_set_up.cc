#include "worker_runtime/engine/engine_set_up.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster {
namespace {

absl::Status CheckComputesIn(const Device& device, DType dtype) {
  if (device.ComputesIn(dtype)) return absl::OkStatus();
  std::vector<absl::string_view> computes;
  for (const DType other : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    if (device.ComputesIn(other)) computes.push_back(ToString(other));
  }
  return absl::UnimplementedError(absl::StrCat(
      "parameters in ", ToString(dtype), ": device ", device.name(), " computes in ",
      absl::StrJoin(computes, ", "), "; make the ParameterStore of one of these types"));
}

}  // namespace

absl::Status CheckSupported(const Plan& plan, const ParameterStore& store, const Device& device) {
  MUSTER_RETURN_IF_ERROR(CheckHasParameters(store));
  std::vector<plan::ParameterInfo> parameters = engine::InfoOf(store);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<plan::ParameterUpdate> updates,
                          plan::PlanUpdates(plan, parameters));
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].frozen = updates[i].frozen;
  MUSTER_RETURN_IF_ERROR(plan::CheckParameterTypes(parameters));
  const plan::StateTypes types = plan::TypesOf(plan, parameters);
  MUSTER_RETURN_IF_ERROR(CheckComputesIn(device, types.parameters));
  MUSTER_RETURN_IF_ERROR(CheckComputesIn(device, types.frozen));
  MUSTER_RETURN_IF_ERROR(plan::CheckRounding(plan, types.parameters));
  const DType wide = plan::TypesOf(Plan(), types.parameters).gradients;
  const bool may_round = wide == DType::kF32 && SizeOf(types.reduced) < SizeOf(wide);
  if (types.reduced != wide && !may_round) {
    return plan::PlanError(
        "reduce_dtype",
        absl::StrCat(" is ", ToString(types.reduced), " over gradients in ", ToString(wide),
                     ": this version reduces f32 in f32, bf16 or f16, and others as they are"),
        absl::StatusCode::kUnimplemented);
  }
  if (types != plan::StateTypes{types.parameters, types.frozen, wide, wide, wide, types.reduced}) {
    return absl::UnimplementedError(
        absl::StrCat("parameters in ", ToString(types.parameters), ", gradients in ",
                     ToString(types.gradients), " and the optimizer in ", ToString(types.moments),
                     ": this version keeps gradients and optimizer in f32 under parameters of 16 "
                     "bits, and all states alike under others"));
  }
  const std::pair<const char*, const StatePlan*> states[] = {{"parameters", &plan.parameters},
                                                             {"gradients", &plan.gradients},
                                                             {"optimizer", &plan.optimizer}};
  for (const auto& [name, state] : states) {
    if (state->residency == Residency::kDevice) continue;
    return absl::UnimplementedError(absl::StrCat("plan ", plan.preset, ": this version keeps the ",
                                                 name, " on the device, not in ",
                                                 ToString(state->residency)));
  }
  return absl::OkStatus();
}

absl::Status CheckTensorRanks(const ParameterStore& store, const plan::Mesh& mesh, int rank) {
  const TensorRanks wanted = {.rank = mesh.CoordinateOf(rank, plan::Dimension::kTensor),
                              .size = mesh.tensor_ranks()};
  const TensorRanks& own = store.tensor_ranks();
  if (own == wanted) return absl::OkStatus();
  return plan::PlanError(
      "tensor_ranks",
      absl::StrCat(" is ", wanted.size, ", so rank ", rank, " is number ", wanted.rank, " of ",
                   wanted.size, ", and its ParameterStore is ", "that of number ", own.rank, " of ",
                   own.size, "; make it with TensorRanks::Of(rank, plan.tensor_ranks)"));
}

absl::Status CheckHasParameters(const ParameterStore& store) {
  MUSTER_RETURN_IF_ERROR(store.status());
  if (!store.parameters().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the parameter store is empty: create the model before the engine");
}

absl::Status CheckLiveLimit(const Plan& plan, const plan::BlockLayout& layout) {
  if (plan.parameters.placement != Placement::kShard) return absl::OkStatus();
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const int64_t elements = layout.units[u].num_elements() + layout.frozen_units[u].num_elements();
    if (elements <= plan.gathering.max_live_elements) continue;
    return plan::PlanError(
        "gathering.max_live_elements",
        absl::StrCat(" is ", plan.gathering.max_live_elements, ", and the largest unit alone has ",
                     elements, " elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const Plan& plan, const PipelineCut& cut, int world_size) {
  if (plan.stages == 1) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const int places, NumStages(plan, world_size));
  const int stages = plan::StagesOver(plan, places);
  if (stages == cut.stages()) return absl::OkStatus();
  return plan::PlanError(
      "stages",
      absl::StrCat(" is ", stages, ", and the model is cut into ", cut.stages(),
                   "; give Engine::Create a model in units, as Decoder::Units, and it cuts "
                   "it"));
}

absl::Status CheckCut(const ParameterStore& store, const PipelineCut& cut, int places,
                      int world_size) {
  const auto refuse = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("the pipeline's cut: ", what...));
  };
  const int units = std::max(1, static_cast<int>(store.unit_names().size()));
  for (size_t s = 0; s < cut.first_units.size(); ++s) {
    const int unit = cut.first_units[s];
    const bool fits = s == 0 ? unit == 0 : cut.first_units[s - 1] < unit && unit < units;
    if (!fits) return refuse("stage ", s, " cannot begin with unit ", unit, " of ", units);
  }
  if (cut.first_units.empty() || cut.borrowed.size() != cut.first_units.size() ||
      cut.received.size() != cut.first_units.size()) {
    return refuse("there are ", cut.first_units.size(), " stages, ", cut.borrowed.size(),
                  " lists of borrowed parameters and ", cut.received.size(),
                  " lists of what is received");
  }
  for (size_t s = 0; s < cut.received.size(); ++s) {
    if (cut.received[s].empty() == (s == 0)) continue;
    return refuse("stage ", s, " receives ", engine::TextOfShapes(cut.received[s]),
                  "; each but the first receives something");
  }
  if (world_size % places != 0) {
    return refuse(world_size, " ranks cannot be divided into ", places, " stages");
  }
  return absl::OkStatus();
}

absl::Status CheckDeclaresTokens(const Plan& plan, const EngineSetUp& set_up) {
  if (plan.loss_scaling.kind == LossScaling::Kind::kNone || set_up.declared_tokens() > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "plan: the loss scale is that of a mean over the tokens of a micro-batch, and nothing says "
      "how many it has: give Engine::Create one micro-batch as a sample, with targets that count");
}

absl::StatusOr<EngineSetUp> SetUpOf(const ParameterStore& store, const Plan& plan,
                                    const PipelineCut& cut, int world_size,
                                    const std::vector<plan::UseTrace>& traces) {
  EngineSetUp set_up = {.parameters = engine::InfoOf(store), .received = cut.received};
  const int places = plan::RanksOf(plan, cut.stages());
  set_up.layout = plan::PlanBlockLayout(set_up.parameters);
  MUSTER_ASSIGN_OR_RETURN(set_up.mesh, plan::MeshOf(plan, places, world_size));
  set_up.stages = engine::StagesOf(store, set_up.layout, cut, traces);
  for (int stage = 0; stage < cut.stages(); ++stage) {
    set_up.units.push_back(engine::UnitsOf(store, cut, stage));
  }
  MUSTER_ASSIGN_OR_RETURN(set_up.schedule, plan::ScheduleOf(plan, places));
  MUSTER_RETURN_IF_ERROR(plan::CheckSchedule(set_up.InputOf(plan), set_up.schedule));
  return set_up;
}

absl::Status ProvePrograms(const EngineSetUp& set_up, const Plan& plan, int own_rank) {
  const plan::ProgramInput input = set_up.InputOf(plan);
  MUSTER_RETURN_IF_ERROR(plan::ProveMemory(plan::CompileProgram(input, own_rank)));
  return plan::ProvePrograms(plan::CompileJob(input));
}

absl::StatusOr<PipelineCut> CutOf(ParameterStore& store, const Plan& plan, int world_size,
                                  const UnitModel& model, const ModelInput& sample) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckHasParameters(store));
  MUSTER_RETURN_IF_ERROR(plan::CheckStagesPerRank(plan));
  MUSTER_ASSIGN_OR_RETURN(const int places, NumStages(plan, world_size));
  MUSTER_RETURN_IF_ERROR(plan::MeshOf(plan, places, world_size).status());
  MUSTER_ASSIGN_OR_RETURN(const plan::Schedule schedule, plan::ScheduleOf(plan, places));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  return engine::CutModel(store, plan, schedule.num_stages(), model, sample);
}

}  // namespace muster

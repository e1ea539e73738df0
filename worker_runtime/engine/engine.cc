// Setting up an engine: agreement, memory, programs and their proof. Steps are in engine_step.cc.
#include "muster/engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/agreement.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/plan_text.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster {
namespace {

// Above it the ranks trust what was proven for fewer.
constexpr int kMostProvenRanks = 256;

// What this version executes; the plan's types know more.
absl::Status CheckSupported(const Plan& plan, DType parameters) {
  const plan::StateTypes types = plan::TypesOf(plan, parameters);
  const plan::StateTypes alike = {parameters, parameters, parameters, parameters};
  if (types != alike || SizeOf(parameters) < SizeOf(DType::kF32)) {
    return absl::UnimplementedError(
        absl::StrCat("parameters in ", ToString(types.parameters), ", gradients in ",
                     ToString(types.gradients), " and the optimizer in ", ToString(types.moments),
                     ": this version trains in f32 or f64, all states alike"));
  }
  const auto is_whole = [](const StatePlan& state) {
    return state.placement == Placement::kReplicate && state.residency == Residency::kDevice;
  };
  const std::pair<const char*, bool> states[] = {
      {"parameters", is_whole(plan.parameters)},
      {"gradients", is_whole(plan.gradients)},
      {"optimizer", plan.optimizer.residency == Residency::kDevice}};
  for (const auto& [name, supported] : states) {
    if (supported) continue;
    return absl::UnimplementedError(absl::StrCat(
        "plan ", plan.preset, ": this version keeps the ", name,
        " whole and on the device, and shards the optimizer alone: use ddp or zero-1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCut(const ParameterStore& store, const PipelineCut& cut, int world_size) {
  const auto refuse = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("the pipeline's cut: ", what...));
  };
  const int units = std::max(1, static_cast<int>(store.unit_names().size()));
  for (const auto& stage : cut.borrowed) {
    for (const Parameter* parameter : stage) {
      if (parameter->frozen()) return refuse(parameter->name(), " is borrowed and frozen");
    }
  }
  for (size_t s = 0; s < cut.first_units.size(); ++s) {
    const int unit = cut.first_units[s];
    const bool fits = s == 0 ? unit == 0 : cut.first_units[s - 1] < unit && unit < units;
    if (!fits) return refuse("stage ", s, " cannot begin with unit ", unit, " of ", units);
  }
  if (cut.first_units.empty() || cut.borrowed.size() != cut.first_units.size()) {
    return refuse("there are ", cut.first_units.size(), " stages and ", cut.borrowed.size(),
                  " lists of borrowed parameters");
  }
  if (world_size % cut.stages() != 0) {
    return refuse(world_size, " ranks cannot be divided into ", cut.stages(), " stages");
  }
  return absl::OkStatus();
}

EngineSetUp SetUpOf(const ParameterStore& store, const PipelineCut& cut, int world_size) {
  EngineSetUp set_up = {.parameters = engine::InfoOf(store), .boundary = cut.boundary};
  set_up.layout = plan::PlanBlockLayout(set_up.parameters);
  set_up.mesh = {.stages = cut.stages(), .replicas = world_size / cut.stages()};
  const plan::UseTrace trace = plan::AssumedTrace(static_cast<int>(set_up.parameters.size()));
  for (int s = 0; s < cut.stages(); ++s) {
    plan::StageInfo stage = plan::WholeModel(set_up.layout, trace);
    if (s > 0) stage.blocks.begin = set_up.layout.units[cut.first_units[s]].begin;
    if (s + 1 < cut.stages()) {
      stage.blocks.end = set_up.layout.units[cut.first_units[s + 1]].begin;
    }
    for (const Parameter* parameter : cut.borrowed[s]) stage.borrowed.push_back(parameter->index());
    stage.received_bytes =
        cut.boundary.num_elements() * static_cast<int64_t>(SizeOf(store.dtype()));
    set_up.stages.push_back(std::move(stage));
  }
  return set_up;
}

plan::ProgramInput InputOf(const EngineSetUp& set_up, const Plan& plan, DType dtype) {
  return {.plan = plan,
          .parameters = set_up.parameters,
          .types = plan::TypesOf(plan, dtype),
          .mesh = set_up.mesh,
          .stages = set_up.stages};
}

absl::Status Prove(const EngineSetUp& set_up, const Plan& plan, DType dtype, int own_rank) {
  const plan::Program own = plan::CompileProgram(InputOf(set_up, plan, dtype), own_rank);
  MUSTER_RETURN_IF_ERROR(plan::ProveMemory(own));
  if (set_up.mesh.size() > kMostProvenRanks) return absl::OkStatus();
  std::vector<plan::Program> programs;
  for (int rank = 0; rank < set_up.mesh.size(); ++rank) {
    programs.push_back(plan::CompileProgram(InputOf(set_up, plan, dtype), rank));
  }
  return plan::ProvePrograms(programs);
}

EngineMemory MemoryOf(const plan::ArenaBytes& bytes) {
  return {.parameters = At(bytes, plan::Arena::kParameters),
          .gradients = At(bytes, plan::Arena::kGradients) + At(bytes, plan::Arena::kPartialSums),
          .optimizer = At(bytes, plan::Arena::kOptimizer),
          .buffers = At(bytes, plan::Arena::kBuffers),
          .activations_peak = At(bytes, plan::Arena::kActivations)};
}

// Beyond what the plan and the parameters say: where the model is cut.
std::string TextOfCut(const PipelineCut& cut) {
  if (cut.stages() == 1) return "";
  std::string text =
      absl::StrCat("first units of stages=", absl::StrJoin(cut.first_units, " "),
                   "\nboundary of stages=", cut.boundary.ToString(), "\nborrowed by stages=");
  for (const auto& stage : cut.borrowed) {
    for (const Parameter* parameter : stage) absl::StrAppend(&text, parameter->name(), " ");
    absl::StrAppend(&text, ";");
  }
  return text + "\n";
}

std::vector<Communicator*> GroupsOf(Communicator& world, Communicator* stage) {
  if (stage == nullptr) return {&world};
  return {&world, stage};
}

}  // namespace

Engine::State::State(Communicator& the_world, ParameterStore& the_store, Plan the_plan,
                     EngineSetUp the_set_up, std::unique_ptr<Communicator> the_stage)
    : world(the_world),
      store(the_store),
      plan(std::move(the_plan)),
      set_up(std::move(the_set_up)),
      stage(std::move(the_stage)),
      program(plan::CompileProgram(InputOf(set_up, plan, store.dtype()), world.rank())),
      held(store, set_up.layout, program, set_up.stages[stage_number()].borrowed,
           NumMoments(plan.update), queue),
      reduction(program, GroupsOf(world, stage.get()), held, queue),
      core(program),
      in_flight(plan.accumulation),
      scaler(plan.loss_scaling) {}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan) {
  return CreateStage(world, store, std::move(plan), {});
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::CreateStage(Communicator& world,
                                                            ParameterStore& store, Plan plan,
                                                            const PipelineCut& cut) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store.dtype()));
  if (store.parameters().empty()) {
    return absl::InvalidArgumentError(
        "the parameter store is empty: create the model before the engine");
  }
  MUSTER_RETURN_IF_ERROR(CheckCut(store, cut, world.size()));
  MUSTER_ASSIGN_OR_RETURN(std::vector<plan::ParameterUpdate> updates,
                          engine::FreezeGroups(store, plan));
  EngineSetUp set_up = SetUpOf(store, cut, world.size());
  set_up.updates = std::move(updates);
  const plan::Program program_of_0 = plan::CompileProgram(InputOf(set_up, plan, store.dtype()), 0);
  const std::string text = plan::CanonicalText(plan, set_up.parameters, store.dtype());
  MUSTER_RETURN_IF_ERROR(
      CheckAgreement(world, absl::StrCat(text, TextOfCut(cut), plan::Describe(program_of_0))));
  MUSTER_RETURN_IF_ERROR(Prove(set_up, plan, store.dtype(), world.rank()));
  std::unique_ptr<Communicator> stage;
  if (cut.stages() > 1) {
    const int number = world.rank() / set_up.mesh.replicas;
    MUSTER_ASSIGN_OR_RETURN(stage, world.Split(number, world.rank()));
  }
  auto state =
      std::make_unique<State>(world, store, std::move(plan), std::move(set_up), std::move(stage));
  state->plan_hash = Sha256().Add(text).Finish();
  store.Initialize(state->plan.seed);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

absl::StatusOr<EngineMemory> Engine::PlanMemory(ParameterStore& store, const Plan& plan,
                                                int world_size, Forward forward) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store.dtype()));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  MUSTER_ASSIGN_OR_RETURN(plan::UseTrace trace, engine::RecordUse(store, plan, [&](Tape& tape) {
                            return forward(tape, 0);
                          }));
  EngineSetUp set_up = SetUpOf(store, {}, world_size);
  set_up.stages[0].trace = std::move(trace);
  const plan::Program program = plan::CompileProgram(InputOf(set_up, plan, store.dtype()),
                                                     plan::RankThatNeedsMost(plan, set_up.mesh));
  return MemoryOf(plan::FiguresOf(program).peak);
}

// --- what it holds ------------------------------------------------------------------------------

void Engine::OnPhase(std::function<void(int64_t step, Phase phase)> listener) {
  state_->on_phase = std::move(listener);
}
void Engine::FenceCheckpoints(CheckpointFence fence) { state_->fence = std::move(fence); }
int64_t Engine::step() const { return state_->step; }
const Plan& Engine::plan() const { return state_->plan; }
TensorPool& Engine::pool() { return state_->pool; }
const std::string& Engine::PlanHash() const { return state_->plan_hash; }

EngineMemory Engine::memory() const {
  plan::ArenaBytes taken = state_->held.held();
  At(taken, plan::Arena::kBuffers) += state_->reduction.buffer_bytes();
  At(taken, plan::Arena::kActivations) = static_cast<int64_t>(state_->pool.usage().bytes_reserved);
  return MemoryOf(taken);
}

std::string Engine::ParameterHash() const {
  Sha256 hash;
  for (const auto& parameter : state_->store.parameters()) {
    if (parameter->value().empty()) continue;  // of another stage
    hash.Add(parameter->name()).Add("\n");
    hash.Add(parameter->value().raw_data(), parameter->value().num_bytes());
  }
  return hash.Finish();
}

}  // namespace muster

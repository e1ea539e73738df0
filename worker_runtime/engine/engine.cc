// Setting up an engine: agreement, memory, programs and their proof. Steps are in engine_step.cc.
#include "muster/engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/agreement.h"
#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/plan_page.h"
#include "worker_runtime/plan/plan_text.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {
namespace {

// Above it the ranks trust what was proven for fewer.
constexpr int kMostProvenRanks = 256;

constexpr char kNoParameters[] = "the parameter store is empty: create the model before the engine";

const Device& DeviceOf(const ParameterStore& store) {
  return store.device() == nullptr ? Device::Cpu() : *store.device();
}

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

// What this version executes; the plan's types know more.
absl::Status CheckSupported(const Plan& plan, DType parameters, const Device& device) {
  MUSTER_RETURN_IF_ERROR(CheckComputesIn(device, parameters));
  MUSTER_RETURN_IF_ERROR(plan::CheckRounding(plan, parameters));
  const plan::StateTypes types = plan::TypesOf(plan, parameters);
  const DType wide = SizeOf(parameters) < SizeOf(DType::kF32) ? DType::kF32 : parameters;
  const bool may_round = wide == DType::kF32 && SizeOf(types.reduced) < SizeOf(wide);
  if (types.reduced != wide && !may_round) {
    return absl::UnimplementedError(absl::StrCat(
        "plan: reduce_dtype is ", ToString(types.reduced), " over gradients in ", ToString(wide),
        ": this version reduces f32 in f32, bf16 or f16, and others as "
        "they are"));
  }
  if (types != plan::StateTypes{parameters, wide, wide, wide, types.reduced}) {
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

// A unit that is larger could never be gathered.
absl::Status CheckLiveLimit(const Plan& plan, const plan::BlockLayout& layout) {
  if (plan.parameters.placement != Placement::kShard) return absl::OkStatus();
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const int64_t elements = layout.units[u].num_elements() + layout.frozen_units[u].num_elements();
    if (elements <= plan.gathering.max_live_elements) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("plan: gathering.max_live_elements is ", plan.gathering.max_live_elements,
                     ", and the largest unit alone has ", elements, " elements"));
  }
  return absl::OkStatus();
}

// `plan` says how many stages there are, unless the cut alone does.
absl::Status CheckStages(const Plan& plan, const PipelineCut& cut, int world_size) {
  if (plan.stages == 1) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const int places, NumStages(plan, world_size));
  const int stages = plan::StagesOver(plan, places);
  if (stages == cut.stages()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("plan: stages is ", stages, ", and the model is cut into ", cut.stages(),
                   "; give Engine::Create a model in units, as Gpt::Units, and it cuts it"));
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
  if (cut.first_units.empty() || cut.borrowed.size() != cut.first_units.size()) {
    return refuse("there are ", cut.first_units.size(), " stages and ", cut.borrowed.size(),
                  " lists of borrowed parameters");
  }
  if (world_size % places != 0) {
    return refuse(world_size, " ranks cannot be divided into ", places, " stages");
  }
  return absl::OkStatus();
}

// Places of a pipeline, of which each has several stages in turn or one.
int PlacesOf(const Plan& plan, const PipelineCut& cut) {
  return cut.stages() == 1 ? 1 : cut.stages() / plan::StagesPerRank(plan);
}

// Errors: the schedule has no order for so many stages and micro-batches, or not for these stages.
absl::StatusOr<EngineSetUp> SetUpOf(const ParameterStore& store, const Plan& plan,
                                    const PipelineCut& cut, int world_size,
                                    const std::vector<plan::UseTrace>& traces) {
  EngineSetUp set_up = {.parameters = engine::InfoOf(store), .boundary = cut.boundary};
  const int places = PlacesOf(plan, cut);
  set_up.layout = plan::PlanBlockLayout(set_up.parameters);
  set_up.mesh = {.stages = places, .replicas = world_size / places};
  set_up.stages = engine::StagesOf(store, set_up.layout, cut, traces);
  for (int stage = 0; stage < cut.stages(); ++stage) {
    set_up.units.push_back(engine::UnitsOf(store, cut, stage));
  }
  MUSTER_ASSIGN_OR_RETURN(set_up.schedule, plan::ScheduleOf(plan, places));
  MUSTER_RETURN_IF_ERROR(plan::CheckSchedule(set_up.InputOf(plan, store.dtype()), set_up.schedule));
  return set_up;
}

absl::Status Prove(const EngineSetUp& set_up, const Plan& plan, DType dtype, int own_rank) {
  const plan::Program own = plan::CompileProgram(set_up.InputOf(plan, dtype), own_rank);
  MUSTER_RETURN_IF_ERROR(plan::ProveMemory(own));
  if (set_up.mesh.size() > kMostProvenRanks) return absl::OkStatus();
  std::vector<plan::Program> programs;
  for (int rank = 0; rank < set_up.mesh.size(); ++rank) {
    programs.push_back(plan::CompileProgram(set_up.InputOf(plan, dtype), rank));
  }
  return plan::ProvePrograms(programs);
}

EngineMemory MemoryOf(const plan::ArenaBytes& bytes) {
  return {.parameters = At(bytes, plan::Arena::kParameters),
          .gathered = At(bytes, plan::Arena::kGathered),
          .gradients = At(bytes, plan::Arena::kGradients) + At(bytes, plan::Arena::kUnreduced) +
                       At(bytes, plan::Arena::kPartialSums),
          .optimizer = At(bytes, plan::Arena::kOptimizer),
          .buffers = At(bytes, plan::Arena::kBuffers),
          .activations_peak = At(bytes, plan::Arena::kActivations)};
}

// The memory of the rank that needs most.
absl::StatusOr<EngineMemory> MemoryOfStages(const ParameterStore& store, const Plan& plan,
                                            const EngineSetUp& set_up, const Engine::Ranks& ranks) {
  MUSTER_RETURN_IF_ERROR(CheckLiveLimit(plan, set_up.layout));
  const plan::ProgramInput input = set_up.InputOf(plan, store.dtype());
  const plan::Program program = plan::CompileProgram(input, plan::RankThatNeedsMost(input));
  EngineMemory memory = MemoryOf(plan::FiguresOf(program).peak);
  if (ranks.on_gpus) memory.device = kCudaWorkspaceBytes;
  const int of_node = ranks.of_node == 0 ? ranks.world_size : ranks.of_node;
  memory.exchange = plan::ExchangeMemoryOf(program, of_node).total();
  return memory;
}

const Device& MetaOf(const Engine::Ranks& ranks, const Plan& plan) {
  return engine::MetaDevice(ranks.on_gpus, ranks.cuda_attention, plan.mode);
}

// Where plan.stages cuts a model in units.
absl::StatusOr<PipelineCut> CutOf(ParameterStore& store, const Plan& plan, int world_size,
                                  const UnitModel& model, const ModelInput& sample) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  if (store.parameters().empty()) return absl::InvalidArgumentError(kNoParameters);
  MUSTER_RETURN_IF_ERROR(plan::CheckStagesPerRank(plan));
  MUSTER_ASSIGN_OR_RETURN(const int places, NumStages(plan, world_size));
  MUSTER_RETURN_IF_ERROR(
      plan::CheckGroups(plan, {.stages = places, .replicas = world_size / places}));
  MUSTER_ASSIGN_OR_RETURN(const plan::Schedule schedule, plan::ScheduleOf(plan, places));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  return engine::CutModel(store, plan, schedule.num_stages(), model, sample);
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

// What the seed of the backward pass is made from.
std::string TextOfTokens(const Plan& plan, const EngineSetUp& set_up) {
  if (plan.loss_scaling.kind == LossScaling::Kind::kNone) return "";
  return absl::StrCat("tokens of a micro-batch=", set_up.declared_tokens(), "\n");
}

std::vector<Communicator*> GroupsOf(Communicator& world,
                                    const std::vector<std::unique_ptr<Communicator>>& own) {
  std::vector<Communicator*> groups = {&world};
  for (const auto& group : own) groups.push_back(group.get());
  return groups;
}

// Every rank has as many groups, of the same kinds in the same order.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> SplitGroups(
    Communicator& world, const plan::Program& program) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (size_t g = 1; g < program.groups.size(); ++g) {
    const plan::Group& group = program.groups[g];
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> own,
                            world.Split(group.ranks.front(), world.rank(), group.name));
    groups.push_back(std::move(own));
  }
  return groups;
}

// --- the order of use ---------------------------------------------------------------------------

std::vector<int64_t> Numbers(const plan::UseTrace& trace) {
  std::vector<int64_t> numbers = {trace.kept_bytes, trace.peak_bytes, trace.weights_bytes,
                                  trace.num_tokens};
  for (const std::vector<int>* list :
       {&trace.forward, &trace.backward, &trace.weights, &trace.gradients}) {
    numbers.push_back(static_cast<int64_t>(list->size()));
    numbers.insert(numbers.end(), list->begin(), list->end());
  }
  return numbers;
}

plan::UseTrace TraceOf(absl::Span<const int64_t> numbers) {
  plan::UseTrace trace = {.kept_bytes = numbers[0],
                          .peak_bytes = numbers[1],
                          .weights_bytes = numbers[2],
                          .num_tokens = numbers[3]};
  size_t next = 4;
  for (std::vector<int>* list :
       {&trace.forward, &trace.backward, &trace.weights, &trace.gradients}) {
    const size_t count = static_cast<size_t>(numbers[next++]);
    for (size_t i = 0; i < count; ++i) list->push_back(static_cast<int>(numbers[next++]));
  }
  return trace;
}

// Each rank knows what its own stage does.
absl::StatusOr<std::vector<plan::UseTrace>> ShareTraces(Communicator& world, plan::Mesh mesh,
                                                        const plan::UseTrace& own) {
  if (mesh.stages == 1) return std::vector<plan::UseTrace>{own};
  std::vector<int64_t> numbers = Numbers(own);
  std::vector<int64_t> size = {static_cast<int64_t>(numbers.size())};
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(size), {.op = ReduceOp::kMax}).Wait());
  numbers.resize(size[0]);
  std::vector<int64_t> all(size[0] * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(numbers), BufferOf(all)).Wait());
  std::vector<plan::UseTrace> traces;
  for (int stage = 0; stage < mesh.stages; ++stage) {
    traces.push_back(
        TraceOf(absl::MakeConstSpan(all).subspan(stage * mesh.replicas * size[0], size[0])));
  }
  return traces;
}

// What a stage does with a micro-batch, on the meta device.
absl::StatusOr<plan::UseTrace> RecordStage(ParameterStore& store, const Plan& plan,
                                           const PipelineCut& cut, int stage,
                                           const Engine::StageSample& sample) {
  int64_t num_tokens = 0;
  MUSTER_ASSIGN_OR_RETURN(
      plan::UseTrace trace,
      engine::RecordStageUse(
          store, plan, stage == 0 ? Shape() : cut.boundary,
          [&](Tape& tape, const Activation& received) -> absl::StatusOr<Activation> {
            MUSTER_ASSIGN_OR_RETURN(StageOutput output, sample(tape, received));
            if (stage + 1 < cut.stages()) return std::move(output.passed_on);
            num_tokens = output.loss.num_tokens;
            return std::move(output.loss.output);
          },
          engine::MetaDeviceOf(store)));
  trace.num_tokens = num_tokens;
  return trace;
}

absl::StatusOr<plan::UseTrace> AssumeStage(const ParameterStore& store, const Plan& plan,
                                           plan::Mesh mesh) {
  if (!plan::NeedsUses(plan, mesh)) {
    return plan::AssumedTrace(static_cast<int>(store.parameters().size()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plan ", plan.preset,
                   " works unit by unit, in the order in which the model "
                   "uses them: give Engine::Create one micro-batch as a sample"));
}

// Those of all stages, of which each rank records its own.
absl::StatusOr<std::vector<plan::UseTrace>> TracesOf(Communicator& world, plan::Mesh mesh,
                                                     const plan::Schedule& schedule,
                                                     StageTracer record) {
  std::vector<plan::UseTrace> traces(schedule.num_stages());
  const std::vector<int> own = plan::StagesAt(schedule, world.rank() / mesh.replicas);
  for (size_t turn = 0; turn < own.size(); ++turn) {
    MUSTER_ASSIGN_OR_RETURN(const plan::UseTrace trace, record(own[turn]));
    MUSTER_ASSIGN_OR_RETURN(const std::vector<plan::UseTrace> of_places,
                            ShareTraces(world, mesh, trace));
    for (int place = 0; place < mesh.stages; ++place) {
      traces[plan::StagesAt(schedule, place)[turn]] = of_places[place];
    }
  }
  return traces;
}

// The scale of a loss is divided by it.
absl::Status CheckDeclaresTokens(const Plan& plan, const EngineSetUp& set_up) {
  if (plan.loss_scaling.kind == LossScaling::Kind::kNone || set_up.declared_tokens() > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "plan: the loss scale is that of a mean over the tokens of a micro-batch, and nothing says "
      "how many it has: give Engine::Create one micro-batch as a sample, with targets that count");
}

}  // namespace

Engine::State::State(Communicator& the_world, ParameterStore& the_store, Plan the_plan,
                     EngineSetUp the_set_up, plan::Program the_program,
                     std::vector<std::unique_ptr<Communicator>> the_groups)
    : world(the_world),
      store(the_store),
      plan(std::move(the_plan)),
      set_up(std::move(the_set_up)),
      program(std::move(the_program)),
      own_groups(std::move(the_groups)),
      pool(DeviceOf(store)),
      held(store, set_up.layout, program, plan::BorrowedBy(program, set_up.stages, set_up.layout),
           NumMoments(plan.update), queue),
      reduction(std::in_place, program, GroupsOf(world, own_groups), held, queue),
      core(std::in_place, program),
      in_flight(pool, plan.recompute),
      transfers(world, store, set_up, program.types, in_flight, queue, pool),
      scaler(plan.loss_scaling) {
  for (const plan::ParameterUpdate& update : set_up.updates) {
    auto group = std::find(update_groups.begin(), update_groups.end(), update);
    if (group == update_groups.end() && !update.frozen) {
      group = update_groups.insert(group, update);
    }
    group_of_parameter.push_back(static_cast<int>(group - update_groups.begin()));
  }
  decision.emplace(queue, static_cast<int>(update_groups.size()));
  if (world.size() > 1) forms.Decline();
  if (!plan::UsesMatter(program) && !is_pipeline()) return;
  store.OnUse([this](Parameter& parameter) { Enter(parameter); });
}

Engine::State::~State() { store.OnUse(nullptr); }

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan, const Sample& sample) {
  StageSample stage_sample;
  if (sample != nullptr) {
    stage_sample = [&sample](Tape& tape, const Activation&) -> absl::StatusOr<StageOutput> {
      MUSTER_ASSIGN_OR_RETURN(Loss loss, sample(tape));
      return StageOutput{.loss = std::move(loss)};
    };
  }
  return CreateStage(world, store, std::move(plan), {}, stage_sample);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::CreateStage(Communicator& world,
                                                            ParameterStore& store, Plan plan,
                                                            const PipelineCut& cut,
                                                            const StageSample& sample) {
  if (plan::StagesPerRank(plan) > 1 && cut.stages() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan: schedule ", plan.schedule, " has ", plan::StagesPerRank(plan),
        " stages per rank, and a program that calls its stages itself has one; give Engine::Create "
        "a model in units, as Gpt::Units, or take 1f1b, gpipe or zb-h1"));
  }
  const plan::Mesh mesh = {.stages = cut.stages(),
                           .replicas = std::max(1, world.size() / std::max(1, cut.stages()))};
  const auto record = [&](int stage) {
    return sample == nullptr ? AssumeStage(store, plan, mesh)
                             : RecordStage(store, plan, cut, stage, sample);
  };
  MUSTER_ASSIGN_OR_RETURN(auto state,
                          State::Create(world, store, plan, cut, record, sample != nullptr));
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Engine::State>> Engine::State::Create(
    Communicator& world, ParameterStore& store, Plan plan, const PipelineCut& cut,
    StageTracer record, bool has_sample) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store.dtype(), DeviceOf(store)));
  if (store.parameters().empty()) {
    return absl::InvalidArgumentError(kNoParameters);
  }
  MUSTER_RETURN_IF_ERROR(engine::CheckIsFree(store));
  MUSTER_RETURN_IF_ERROR(CheckStages(plan, cut, world.size()));
  const int places = PlacesOf(plan, cut);
  MUSTER_RETURN_IF_ERROR(CheckCut(store, cut, places, world.size()));
  plan.stages = places;
  const plan::Mesh mesh = {.stages = places, .replicas = world.size() / places};
  MUSTER_RETURN_IF_ERROR(plan::CheckGroups(plan, mesh));
  MUSTER_ASSIGN_OR_RETURN(std::vector<plan::ParameterUpdate> updates,
                          engine::FreezeGroups(store, plan));
  MUSTER_ASSIGN_OR_RETURN(const plan::Schedule schedule, plan::ScheduleOf(plan, places));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<plan::UseTrace> traces,
                          TracesOf(world, mesh, schedule, record));
  MUSTER_ASSIGN_OR_RETURN(EngineSetUp set_up, SetUpOf(store, plan, cut, world.size(), traces));
  set_up.updates = std::move(updates);
  set_up.learns_order = !has_sample && cut.stages() == 1 && mesh.replicas > 1 && plan.overlap;
  MUSTER_RETURN_IF_ERROR(CheckLiveLimit(plan, set_up.layout));
  MUSTER_RETURN_IF_ERROR(CheckDeclaresTokens(plan, set_up));
  const plan::Program program_of_0 = plan::CompileProgram(set_up.InputOf(plan, store.dtype()), 0);
  const std::string text = plan::CanonicalText(plan, set_up.parameters, store.dtype());
  MUSTER_RETURN_IF_ERROR(
      CheckAgreement(world, absl::StrCat(text, TextOfCut(cut), TextOfTokens(plan, set_up),
                                         plan::Describe(program_of_0))));
  MUSTER_RETURN_IF_ERROR(Prove(set_up, plan, store.dtype(), world.rank()));
  plan::Program program = plan::CompileProgram(set_up.InputOf(plan, store.dtype()), world.rank());
  MUSTER_ASSIGN_OR_RETURN(auto groups, SplitGroups(world, program));
  auto state = std::make_unique<State>(world, store, std::move(plan), std::move(set_up),
                                       std::move(program), std::move(groups));
  state->plan_hash = Sha256().Add(text).Finish();
  state->held.Initialize(state->plan.seed);
  return state;
}

// The cut is found out before State::Create looks at the plan, so that is looked at here too.
absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan, UnitModel model,
                                                       const BatchSize& size) {
  const ModelInput sample = engine::SampleInput(size.batch, size.sequence);
  MUSTER_ASSIGN_OR_RETURN(const PipelineCut cut, CutOf(store, plan, world.size(), model, sample));
  const auto record = [&](int stage) {
    const UnitRange units = engine::UnitsOf(store, cut, stage);
    return RecordStage(store, plan, cut, stage, [&](Tape& tape, const Activation& received) {
      return model(tape, units, sample, received);
    });
  };
  MUSTER_ASSIGN_OR_RETURN(auto state,
                          State::Create(world, store, plan, cut, record, /*has_sample=*/true));
  state->set_up.model = std::move(model);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

absl::StatusOr<EngineMemory> Engine::PlanMemory(ParameterStore& store, const Plan& plan,
                                                const Ranks& ranks, const UnitModel& model,
                                                const BatchSize& size) {
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store.dtype(), engine::MetaDevice(ranks.on_gpus)));
  const ModelInput sample = engine::SampleInput(size.batch, size.sequence);
  MUSTER_ASSIGN_OR_RETURN(const PipelineCut cut,
                          CutOf(store, plan, ranks.world_size, model, sample));
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<plan::UseTrace> traces,
      engine::RecordStages(store, plan, cut, model, sample, MetaOf(ranks, plan)));
  MUSTER_ASSIGN_OR_RETURN(const EngineSetUp set_up,
                          SetUpOf(store, plan, cut, ranks.world_size, traces));
  MUSTER_ASSIGN_OR_RETURN(EngineMemory memory, MemoryOfStages(store, plan, set_up, ranks));
  if (ranks.on_gpus) {
    memory.buffers += plan::BytesOfBatches(size.batch * size.sequence * plan.accumulation);
  }
  return memory;
}

absl::StatusOr<EngineMemory> Engine::PlanMemory(ParameterStore& store, const Plan& plan,
                                                const Ranks& ranks, Forward forward) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store.dtype(), engine::MetaDevice(ranks.on_gpus)));
  MUSTER_RETURN_IF_ERROR(CheckStages(plan, {}, ranks.world_size));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  MUSTER_RETURN_IF_ERROR(plan::CheckGroups(plan, {.replicas = ranks.world_size}));
  MUSTER_ASSIGN_OR_RETURN(
      plan::UseTrace trace,
      engine::RecordUse(
          store, plan, [&](Tape& tape) { return forward(tape, 0); }, MetaOf(ranks, plan)));
  MUSTER_ASSIGN_OR_RETURN(const EngineSetUp set_up,
                          SetUpOf(store, plan, {}, ranks.world_size, {trace}));
  return MemoryOfStages(store, plan, set_up, ranks);
}

absl::Status Engine::CheckFits(const EngineMemory& planned, const Device& device) {
  const std::optional<DeviceMemory> memory = device.memory();
  const int64_t needed = planned.total() - planned.exchange;
  if (!memory.has_value() || needed <= memory->free_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step takes ", plan::ReadableBytes(needed), " of the memory of device ", device.name(),
      " (parameters ", plan::ReadableBytes(planned.parameters + planned.gathered), ", gradients ",
      plan::ReadableBytes(planned.gradients), ", optimizer ",
      plan::ReadableBytes(planned.optimizer), ", activations ",
      plan::ReadableBytes(planned.activations_peak), "), and ",
      plan::ReadableBytes(memory->free_bytes), " of its ", plan::ReadableBytes(memory->total_bytes),
      " are free; smaller batches or sequences, recomputation, a plan that shards or a smaller "
      "model take less, and what else runs on it may be ended"));
}

// As DDP's buckets are rebuilt: the first step ran in the assumed order, the others run in the one
// that was seen, if all ranks saw the same. Shards and memory stay where they are.
absl::Status Engine::State::LearnOrder() {
  set_up.learns_order = false;
  std::vector<int>& order = set_up.stages[0].trace.gradients;
  std::vector<int64_t> numbers(store.parameters().size(), -1);
  std::copy(observed_gradients.begin(), observed_gradients.end(), numbers.begin());
  std::vector<int64_t> all(numbers.size() * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(numbers), BufferOf(all)).Wait());
  for (int rank = 1; rank < world.size(); ++rank) {
    const auto its = all.begin() + rank * static_cast<int64_t>(numbers.size());
    if (!std::equal(all.begin(), all.begin() + static_cast<int64_t>(numbers.size()), its)) {
      return absl::OkStatus();
    }
  }
  if (order == observed_gradients) return absl::OkStatus();
  std::swap(order, observed_gradients);
  MUSTER_RETURN_IF_ERROR(Prove(set_up, plan, store.dtype(), world.rank()));
  registrations.clear();
  core.reset();
  reduction.reset();
  program = plan::CompileProgram(set_up.InputOf(plan, store.dtype()), world.rank());
  reduction.emplace(program, GroupsOf(world, own_groups), held, queue);
  core.emplace(program);
  return RegisterBuffers();
}

// --- what it holds ------------------------------------------------------------------------------

void Engine::OnPhase(std::function<void(int64_t step, Phase phase)> listener) {
  state_->listeners.on_phase = std::move(listener);
}
void Engine::OnAction(std::function<void(const TimedAction& action)> listener) {
  state_->listeners.on_action = std::move(listener);
}
void Engine::CaptureSteps(bool captures) {
  state_->captured.reset();
  state_->forms.Forget();
  if (captures) {
    state_->forms.Begin(/*is_alone=*/state_->world.size() == 1);
  } else {
    state_->forms.Decline();
  }
}
void Engine::WaitBeforeUpdates(bool waits) { state_->waits_before_update = waits; }
void Engine::RegisterBuffers(bool registers) {
  if (!state_->has_begun) state_->registers = registers;
}
void Engine::FenceCheckpoints(CheckpointFence fence) { state_->fence = std::move(fence); }
int64_t Engine::step() const { return state_->step; }
const Plan& Engine::plan() const { return state_->plan; }
TensorPool& Engine::pool() { return state_->pool; }
const std::string& Engine::PlanHash() const { return state_->plan_hash; }

EngineMemory Engine::memory() const {
  plan::ArenaBytes taken = state_->held.held();
  At(taken, plan::Arena::kBuffers) +=
      state_->reduction->buffer_bytes() +
      static_cast<int64_t>(state_->batch_pool.usage().bytes_reserved);
  At(taken, plan::Arena::kActivations) = static_cast<int64_t>(state_->pool.usage().bytes_reserved);
  EngineMemory memory = MemoryOf(taken);
  memory.exchange = state_->world.bytes_reserved();
  for (const auto& group : state_->own_groups) memory.exchange += group->bytes_reserved();
  return memory;
}

int64_t Engine::bytes_sent() const {
  int64_t bytes = state_->world.bytes_sent();
  for (const auto& group : state_->own_groups) bytes += group->bytes_sent();
  return bytes;
}

absl::Status Engine::EndUse() { return state_->LeaveAlone(); }

absl::StatusOr<std::string> Engine::ParameterHash() const { return state_->HashParameters(); }

absl::StatusOr<std::string> Engine::State::HashParameters() {
  Sha256 hash;
  for (const auto& parameter : store.parameters()) {
    parameter->Enter();                        // gathered, one unit at a time
    if (parameter->value().empty()) continue;  // of another stage
    MUSTER_ASSIGN_OR_RETURN(const Tensor value, engine::OnHost(queue, parameter->value()));
    hash.Add(parameter->name()).Add("\n");
    hash.Add(value.raw_data(), value.num_bytes());
  }
  MUSTER_RETURN_IF_ERROR(LeaveAlone());
  return hash.Finish();
}

}  // namespace muster

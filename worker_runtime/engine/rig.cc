#include "worker_runtime/engine/rig.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "muster/agreement.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/plan_text.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::engine {
namespace {

const Device& DeviceOf(const ParameterStore& store) {
  return store.device() == nullptr ? Device::Cpu() : *store.device();
}

// Beyond what the plan and the parameters say: where the model is cut.
std::string TextOfCut(const PipelineCut& cut) {
  if (cut.stages() == 1) return "";
  std::string text = absl::StrCat("first units of stages=", absl::StrJoin(cut.first_units, " "),
                                  "\nreceived by stages=");
  for (const auto& stage : cut.received) absl::StrAppend(&text, TextOfShapes(stage), ";");
  absl::StrAppend(&text, "\nborrowed by stages=");
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

// Every rank has as many groups, of the same kinds in the same order.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> SplitGroups(
    Communicator& world, const plan::Program& program) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (size_t g = 1; g < program.groups.size(); ++g) {
    const plan::Dimensions along = program.groups[g];
    auto own = world.Split(program.mesh.FirstOf(world.rank(), along), world.rank(),
                           program.mesh.NameOf(world.rank(), along));
    MUSTER_RETURN_IF_ERROR(AllOrNone(world, own.status()));
    groups.push_back(*std::move(own));
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
  for (const std::vector<plan::TensorSum>* sums : {&trace.forward_sums, &trace.backward_sums}) {
    numbers.push_back(static_cast<int64_t>(sums->size()));
    for (const auto& [uses, parameters, finished, bytes] : *sums) {
      numbers.insert(numbers.end(), {uses, parameters, finished, bytes});
    }
  }
  return numbers;
}

plan::UseTrace TraceOf(absl::Span<const int64_t> numbers) {
  plan::UseTrace trace = {.kept_bytes = numbers[0],
                          .peak_bytes = numbers[1],
                          .weights_bytes = numbers[2],
                          .num_tokens = numbers[3]};
  size_t next = 4;
  const auto next_int = [&] { return static_cast<int>(numbers[next++]); };
  for (std::vector<int>* list :
       {&trace.forward, &trace.backward, &trace.weights, &trace.gradients}) {
    const int count = next_int();
    for (int i = 0; i < count; ++i) list->push_back(next_int());
  }
  for (std::vector<plan::TensorSum>* sums : {&trace.forward_sums, &trace.backward_sums}) {
    const int count = next_int();
    for (int i = 0; i < count; ++i) {
      plan::TensorSum& sum = sums->emplace_back();
      sum.uses = next_int();
      sum.parameters = next_int();
      sum.finished = next_int();
      sum.bytes = numbers[next++];
    }
  }
  return trace;
}

// Each rank knows what its own stage does.
absl::StatusOr<std::vector<plan::UseTrace>> ShareTraces(Communicator& world, const plan::Mesh& mesh,
                                                        const plan::UseTrace& own) {
  if (mesh.places() == 1) return std::vector<plan::UseTrace>{own};
  std::vector<int64_t> numbers = Numbers(own);
  std::vector<int64_t> size = {static_cast<int64_t>(numbers.size())};
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(size), {.op = ReduceOp::kMax}).Wait());
  numbers.resize(size[0]);
  std::vector<int64_t> all(size[0] * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(numbers), BufferOf(all)).Wait());
  std::vector<plan::UseTrace> traces;
  for (int place = 0; place < mesh.places(); ++place) {
    const int rank = mesh.Moved(0, plan::Dimension::kPipeline, place);
    traces.push_back(TraceOf(absl::MakeConstSpan(all).subspan(rank * size[0], size[0])));
  }
  return traces;
}

// Those of all stages, in as many turns as the rank with most stages takes.
absl::StatusOr<std::vector<plan::UseTrace>> TracesOf(Communicator& world, const plan::Mesh& mesh,
                                                     const plan::Schedule& schedule,
                                                     const std::vector<plan::UseTrace>& own) {
  std::vector<plan::UseTrace> traces(schedule.num_stages());
  for (size_t turn = 0; turn < static_cast<size_t>(schedule.stages_per_rank()); ++turn) {
    MUSTER_ASSIGN_OR_RETURN(
        const std::vector<plan::UseTrace> of_places,
        ShareTraces(world, mesh, turn < own.size() ? own[turn] : plan::UseTrace()));
    for (int place = 0; place < mesh.places(); ++place) {
      const std::vector<int> stages = plan::StagesAt(schedule, place);
      if (turn < stages.size()) traces[stages[turn]] = of_places[place];
    }
  }
  return traces;
}

// --- what a rank finds out alone ----------------------------------------------------------------

struct OwnPart {
  plan::Mesh mesh;
  std::vector<plan::ParameterUpdate> updates;
  plan::Schedule schedule;
  std::vector<plan::UseTrace> traces;  // of its stages
};

absl::StatusOr<OwnPart> LookAtOwn(const Communicator& world, ParameterStore& store, Plan& plan,
                                  const PipelineCut& cut, StageTracer record) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store, DeviceOf(store)));
  MUSTER_RETURN_IF_ERROR(CheckIsFree(store));
  MUSTER_RETURN_IF_ERROR(CheckStages(plan, cut, world.size()));
  const int places = plan::RanksOf(plan, cut.stages());
  MUSTER_RETURN_IF_ERROR(CheckCut(store, cut, places, world.size()));
  plan.stages = places;
  OwnPart own;
  MUSTER_ASSIGN_OR_RETURN(own.mesh, plan::MeshOf(plan, places, world.size()));
  MUSTER_RETURN_IF_ERROR(CheckTensorRanks(store, own.mesh, world.rank()));
  MUSTER_ASSIGN_OR_RETURN(own.updates, FreezeGroups(store, plan));
  MUSTER_ASSIGN_OR_RETURN(own.schedule, plan::ScheduleOf(plan, places));
  for (const int stage : plan::StagesAt(own.schedule, own.mesh.PlaceOf(world.rank()))) {
    MUSTER_ASSIGN_OR_RETURN(own.traces.emplace_back(), record(stage));
  }
  return own;
}

absl::StatusOr<EngineSetUp> CompleteSetUp(const ParameterStore& store, const Plan& plan,
                                          const PipelineCut& cut, int world_size,
                                          const std::vector<plan::UseTrace>& traces) {
  MUSTER_ASSIGN_OR_RETURN(EngineSetUp set_up, SetUpOf(store, plan, cut, world_size, traces));
  MUSTER_RETURN_IF_ERROR(CheckLiveLimit(plan, set_up.layout));
  MUSTER_RETURN_IF_ERROR(CheckDeclaresTokens(plan, set_up));
  return set_up;
}

}  // namespace

Rig::Rig(Communicator& the_world, ParameterStore& the_store, Plan the_plan, EngineSetUp the_set_up,
         plan::Program the_program, std::vector<std::unique_ptr<Communicator>> the_groups)
    : world(the_world),
      store(the_store),
      plan(std::move(the_plan)),
      set_up(std::move(the_set_up)),
      program(std::move(the_program)),
      own_groups(std::move(the_groups)),
      pool(DeviceOf(store)),
      held(store, set_up.layout, program, plan::BorrowedBy(program, set_up.stages, set_up.layout),
           NumMoments(plan.update), queue),
      reduction(std::in_place, program, Groups(), held, queue) {}

std::vector<Communicator*> Rig::Groups() const {
  std::vector<Communicator*> groups = {&world};
  for (const auto& group : own_groups) groups.push_back(group.get());
  return groups;
}

void Rig::Abort(absl::string_view reason) {
  for (const auto& group : own_groups) group->Abort(reason);
  world.Abort(reason);
}

absl::Status Rig::Guard(absl::Status own) {
  if (own.ok()) return own;
  // What another rank has ended names that rank already.
  Abort(absl::IsAborted(own) ? own.message()
                             : absl::StrCat("rank ", world.rank(), ": ", own.message()));
  return own;
}

void Rig::Recompile() {
  reduction.reset();
  program = plan::CompileProgram(set_up.InputOf(plan), world.rank());
  reduction.emplace(program, Groups(), held, queue);
}

absl::StatusOr<std::unique_ptr<Rig>> MakeRig(Communicator& world, ParameterStore& store, Plan plan,
                                             const PipelineCut& cut, StageTracer record,
                                             bool has_sample) {
  absl::StatusOr<OwnPart> own = LookAtOwn(world, store, plan, cut, record);
  MUSTER_RETURN_IF_ERROR(AllOrNone(world, own.status()));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<plan::UseTrace> traces,
                          TracesOf(world, own->mesh, own->schedule, own->traces));
  absl::StatusOr<EngineSetUp> completed = CompleteSetUp(store, plan, cut, world.size(), traces);
  MUSTER_RETURN_IF_ERROR(AllOrNone(world, completed.status()));
  EngineSetUp& set_up = *completed;
  set_up.updates = std::move(own->updates);
  set_up.learns_order =
      !has_sample && cut.stages() == 1 && own->mesh.replicas() > 1 && plan.overlap;
  const plan::Program program_of_0 = plan::CompileProgram(set_up.InputOf(plan), 0);
  const std::string text = plan::CanonicalText(plan, set_up.parameters);
  MUSTER_RETURN_IF_ERROR(
      CheckAgreement(world, absl::StrCat(text, TextOfCut(cut), TextOfTokens(plan, set_up),
                                         plan::Describe(program_of_0))));
  MUSTER_RETURN_IF_ERROR(ProvePrograms(set_up, plan, world.rank()));
  plan::Program program = plan::CompileProgram(set_up.InputOf(plan), world.rank());
  MUSTER_ASSIGN_OR_RETURN(auto groups, SplitGroups(world, program));
  auto rig = std::make_unique<Rig>(world, store, std::move(plan), std::move(set_up),
                                   std::move(program), std::move(groups));
  rig->plan_hash = Sha256().Add(text).Finish();
  rig->held.Initialize(rig->plan.seed);
  return rig;
}

absl::StatusOr<bool> AdoptOrder(Rig& rig, const std::vector<int>& observed) {
  rig.set_up.learns_order = false;
  std::vector<int>& order = rig.set_up.stages[0].trace.gradients;
  std::vector<int64_t> numbers(rig.store.parameters().size(), -1);
  std::copy(observed.begin(), observed.end(), numbers.begin());
  std::vector<int64_t> all(numbers.size() * rig.world.size());
  MUSTER_RETURN_IF_ERROR(rig.world.AllGather(ConstBufferOf(numbers), BufferOf(all)).Wait());
  for (int rank = 1; rank < rig.world.size(); ++rank) {
    const auto its = all.begin() + rank * static_cast<int64_t>(numbers.size());
    if (!std::equal(all.begin(), all.begin() + static_cast<int64_t>(numbers.size()), its)) {
      return false;
    }
  }
  if (order == observed) return false;
  order = observed;
  MUSTER_RETURN_IF_ERROR(ProvePrograms(rig.set_up, rig.plan, rig.world.rank()));
  return true;
}

}  // namespace muster::engine

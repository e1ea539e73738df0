// The memory that an engine would take, or has taken.
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster {
namespace {

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
absl::StatusOr<EngineMemory> MemoryOfStages(const Plan& plan, const EngineSetUp& set_up,
                                            const Engine::Ranks& ranks) {
  MUSTER_RETURN_IF_ERROR(CheckLiveLimit(plan, set_up.layout));
  const plan::ProgramInput input = set_up.InputOf(plan);
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

}  // namespace

absl::StatusOr<EngineMemory> Engine::PlanMemory(ParameterStore& store, const Plan& plan,
                                                const Ranks& ranks, const UnitModel& model,
                                                const BatchSize& size) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store, engine::MetaDevice(ranks.on_gpus)));
  const ModelInput sample = engine::SampleInput(size.batch, size.sequence);
  MUSTER_ASSIGN_OR_RETURN(const PipelineCut cut,
                          CutOf(store, plan, ranks.world_size, model, sample));
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<plan::UseTrace> traces,
      engine::RecordStages(store, plan, cut, model, sample, MetaOf(ranks, plan)));
  MUSTER_ASSIGN_OR_RETURN(const EngineSetUp set_up,
                          SetUpOf(store, plan, cut, ranks.world_size, traces));
  MUSTER_ASSIGN_OR_RETURN(EngineMemory memory, MemoryOfStages(plan, set_up, ranks));
  if (ranks.on_gpus) {
    memory.buffers += plan::BytesOfBatches(size.batch * size.sequence * plan.accumulation);
  }
  return memory;
}

absl::StatusOr<EngineMemory> Engine::PlanMemory(ParameterStore& store, const Plan& plan,
                                                const Ranks& ranks, Forward forward) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan, store, engine::MetaDevice(ranks.on_gpus)));
  MUSTER_RETURN_IF_ERROR(CheckStages(plan, {}, ranks.world_size));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  MUSTER_RETURN_IF_ERROR(plan::MeshOf(plan, 1, ranks.world_size).status());
  MUSTER_ASSIGN_OR_RETURN(
      plan::UseTrace trace,
      engine::RecordUse(
          store, plan, [&](Tape& tape) { return forward(tape, 0); }, MetaOf(ranks, plan)));
  MUSTER_ASSIGN_OR_RETURN(const EngineSetUp set_up,
                          SetUpOf(store, plan, {}, ranks.world_size, {trace}));
  return MemoryOfStages(plan, set_up, ranks);
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

EngineMemory Engine::memory() const {
  const engine::Rig& rig = *state_->rig;
  plan::ArenaBytes taken = rig.held.held();
  At(taken, plan::Arena::kBuffers) += rig.reduction->buffer_bytes() + state_->feed.bytes_reserved();
  At(taken, plan::Arena::kActivations) = static_cast<int64_t>(rig.pool.usage().bytes_reserved);
  EngineMemory memory = MemoryOf(taken);
  for (const Communicator* group : rig.Groups()) memory.exchange += group->bytes_reserved();
  return memory;
}

}  // namespace muster

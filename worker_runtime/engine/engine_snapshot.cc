// The state of a rank in memory, and a world that goes on from what its ranks have of it.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/state_exchange.h"
#include "worker_runtime/engine/state_file.h"

namespace muster {
namespace {

constexpr int64_t kNoState = -1;

using Arrays = std::map<std::string, Tensor>;

engine::ArrayTable TableOf(const Arrays& arrays) {
  engine::ArrayTable table;
  for (const auto& [name, array] : arrays) {
    table[name] = {.dtype = array.dtype(), .shape = engine::Sizes(array.shape())};
  }
  return table;
}

std::string NameOf(int rank) { return absl::StrCat("the state of rank ", rank); }

}  // namespace

EngineSnapshot::EngineSnapshot() = default;
EngineSnapshot::EngineSnapshot(std::unique_ptr<const State> state) : state_(std::move(state)) {}
EngineSnapshot::EngineSnapshot(EngineSnapshot&&) noexcept = default;
EngineSnapshot& EngineSnapshot::operator=(EngineSnapshot&&) noexcept = default;
EngineSnapshot::~EngineSnapshot() = default;

int64_t EngineSnapshot::step() const { return empty() ? 0 : state_->head.step; }

absl::Status Engine::State::CheckHoldsWholeState() const {
  if (is_pipeline()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.preset, ": no rank has the whole state, each holds one of ",
                     set_up.mesh.stages, " stages"));
  }
  if (program.shards.size > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", plan.preset, ": no rank has the whole state, which is spread over ",
                     program.shards.size, " ranks"));
  }
  if (is_torn) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of no step: what failed after step ", step,
                     " had begun to change parameters and optimizer"));
  }
  return absl::OkStatus();
}

absl::StatusOr<EngineSnapshot> Engine::TakeSnapshot() {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.CheckHoldsWholeState());
  auto taken = std::make_unique<EngineSnapshot::State>();
  taken->head = state.HeadOfState();
  const std::vector<plan::Program> stages = state.ProgramsOfPlaces();
  const engine::StateExchange exchange(state.world, state.held, stages);
  TensorPool host;
  const auto copy = [&](const std::vector<engine::StateArray>& arrays, Arrays& to) -> absl::Status {
    for (const engine::StateArray& array : arrays) {
      const Parameter& parameter = *array.parameter;
      const Tensor memory = host.Allocate(state.program.types.master, parameter.shape());
      MUSTER_RETURN_IF_ERROR(
          exchange.CopyOwn(array.kind, parameter, memory.Reshaped({parameter.num_elements()})));
      to.emplace(array.name, memory);
    }
    return absl::OkStatus();
  };
  MUSTER_RETURN_IF_ERROR(copy(engine::ModelArrays(state.store), taken->model));
  MUSTER_RETURN_IF_ERROR(
      copy(engine::OptimizerArrays(state.store, state.plan.update), taken->optimizer));
  return EngineSnapshot(std::move(taken));
}

absl::Status Engine::State::CheckSnapshot(const EngineSnapshot::State& snapshot,
                                          const std::string& name) const {
  const engine::ArrayTable model = TableOf(snapshot.model);
  const engine::ArrayTable optimizer = TableOf(snapshot.optimizer);
  return engine::CheckSameModel(store, program.types.master, plan.update, {model, optimizer, name});
}

absl::StatusOr<Engine::Restored> Engine::Restore(const EngineSnapshot& own) {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  state.Mark(Phase::kLoad);
  const std::vector<int64_t> own_step = {own.empty() ? kNoState : own.step()};
  std::vector<int64_t> steps(state.world.size());
  MUSTER_RETURN_IF_ERROR(state.world.AllGather(ConstBufferOf(own_step), BufferOf(steps)).Wait());
  const auto newest = std::max_element(steps.begin(), steps.end());
  if (*newest == kNoState) {
    return absl::NotFoundError(
        absl::StrCat("none of ", state.world.size(), " ranks has the whole state of the training"));
  }
  const int giver = static_cast<int>(newest - steps.begin());
  absl::StatusOr<checkpoint::TrainingState> head = absl::UnknownError("not on this rank");
  if (state.world.rank() == giver) {
    head = own.state_->head;
    absl::Status checked = state.CheckSnapshot(*own.state_, NameOf(giver));
    if (!checked.ok()) head = std::move(checked);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const checkpoint::TrainingState taken,
      state.TakeState({.rank = giver,
                       .name = NameOf(giver),
                       .own = std::move(head),
                       .read = [&](const engine::StateArray& array, const Tensor& memory) {
                         const bool is_value = array.kind == engine::StateKind::kValue;
                         const Arrays& arrays =
                             is_value ? own.state_->model : own.state_->optimizer;
                         const Tensor& from = arrays.at(array.name);
                         return engine::CopyAcross(state.queue, from.Reshaped(memory.shape()),
                                                   memory);
                       }}));
  state.Mark(Phase::kIdle);
  return Restored{.rank = giver, .step = taken.step};
}

}  // namespace muster

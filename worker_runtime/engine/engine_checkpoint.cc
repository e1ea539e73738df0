// Save and load: the state of all ranks passes through rank 0, array by array.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/state_exchange.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster {
namespace {

constexpr char kSkippedSteps[] = "skipped_steps";

// Fills both from the counters of `saved`.
absl::Status ReadCounters(const checkpoint::TrainingState& saved, const std::string& path,
                          plan::LossScaler& scaler, int64_t& skipped_steps) {
  absl::Status status = scaler.Load(saved.counters);
  const auto skipped = saved.counters.find(kSkippedSteps);
  if (status.ok() && skipped != saved.counters.end() &&
      !(absl::SimpleAtoi(skipped->second, &skipped_steps) && skipped_steps >= 0 &&
        skipped_steps <= saved.step)) {
    status = absl::InvalidArgumentError(absl::StrCat(
        kSkippedSteps, " is '", skipped->second, "', not a number of the ", saved.step, " steps"));
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, " is damaged: ", status.message()));
}

constexpr int64_t kNoArray = -1;

// Step, counters and metadata as JSON, for the other ranks.
absl::StatusOr<std::string> HeadOf(const absl::StatusOr<checkpoint::WholeCheckpoint>& opened) {
  MUSTER_RETURN_IF_ERROR(opened.status());
  const nlohmann::json head = {{"step", opened->state.step},
                               {"counters", opened->state.counters},
                               {"metadata", opened->state.metadata}};
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

absl::Status Engine::Save(const std::string& directory,
                          const std::map<std::string, std::string>& metadata) {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  state.Mark(Phase::kSave);
  absl::StatusOr<std::string> written = std::string();
  if (state.world.rank() == 0) {
    written = state.WriteCheckpoint(directory, metadata);
    const absl::Status told = state.TellNext(kNoArray).status();
    if (written.ok()) MUSTER_RETURN_IF_ERROR(told);
  } else {
    MUSTER_RETURN_IF_ERROR(state.GiveArrays());
  }
  const absl::Status saved = FromRankZero(state.world, std::move(written)).status();
  state.Mark(Phase::kIdle);
  return saved;
}

std::vector<plan::Program> Engine::State::StagePrograms() const {
  std::vector<plan::Program> programs;
  for (int stage = 0; stage < set_up.mesh.stages; ++stage) {
    programs.push_back(stage == stage_number()
                           ? program
                           : plan::CompileProgram(set_up.InputOf(plan, store.dtype()),
                                                  stage * set_up.mesh.replicas));
  }
  return programs;
}

// All arrays of a checkpoint in one order, and memory for the largest.
engine::CheckpointArrays Engine::State::ArraysOfCheckpoint() {
  engine::CheckpointArrays all = {.model = engine::ModelArrays(store),
                                  .optimizer = engine::OptimizerArrays(store, plan.update)};
  int64_t most = 0;
  for (const auto& parameter : store.parameters()) {
    most = std::max(most, parameter->num_elements());
  }
  const DType dtype = program.types.master;  // and the moments'
  all.memory = all.pool->Allocate(dtype, {most});
  return all;
}

// What rank 0 says to the others: the array that it writes or has read next, or that there is none.
// It may have been at its disk for hours.
absl::StatusOr<int64_t> Engine::State::TellNext(int64_t array) {
  std::vector<int64_t> told = {array};
  MUSTER_RETURN_IF_ERROR(
      world.Broadcast(BufferOf(told), 0, {.timeout = absl::InfiniteDuration()}).Wait());
  return told[0];
}

absl::StatusOr<std::string> Engine::State::WriteCheckpoint(
    const std::string& directory, const std::map<std::string, std::string>& metadata) {
  checkpoint::TrainingState saved = {.step = step, .metadata = metadata, .counters = scaler.Save()};
  saved.written_by = {fence.instance, fence.round};
  saved.counters[kSkippedSteps] = absl::StrCat(skipped_steps);
  for (const auto& [key, value] : Describe(plan)) saved.plan[key] = value;
  const std::vector<plan::Program> stages = StagePrograms();
  const engine::StateExchange exchange(world, held, stages);
  const engine::CheckpointArrays all = ArraysOfCheckpoint();
  const auto fill = [&](size_t index) -> absl::Status {
    MUSTER_RETURN_IF_ERROR(TellNext(static_cast<int64_t>(index)).status());
    return exchange.Collect(all[index].kind, *all[index].parameter, all.MemoryOf(index));
  };
  return checkpoint::WriteWholeCheckpoint(
      directory, saved, NamedArrays(all.model, program.types.master, all.memory),
      NamedArrays(all.optimizer, program.types.master, all.memory), [this] { Mark(Phase::kSave); },
      [this] { return fence.commit ? fence.commit(step) : absl::OkStatus(); }, fill);
}

absl::Status Engine::State::GiveArrays() {
  const std::vector<plan::Program> stages = StagePrograms();
  const engine::StateExchange exchange(world, held, stages);
  const engine::CheckpointArrays all = ArraysOfCheckpoint();
  for (;;) {
    MUSTER_ASSIGN_OR_RETURN(const int64_t next, TellNext(kNoArray));
    if (next == kNoArray) return absl::OkStatus();
    const engine::StateArray& array = all[static_cast<size_t>(next)];
    MUSTER_RETURN_IF_ERROR(
        exchange.Collect(array.kind, *array.parameter, all.MemoryOf(static_cast<size_t>(next))));
  }
}

absl::StatusOr<checkpoint::WholeCheckpoint> Engine::State::OpenCheckpoint(
    const std::string& directory) {
  MUSTER_ASSIGN_OR_RETURN(const std::string path, checkpoint::FindWholeCheckpoint(directory));
  absl::StatusOr<checkpoint::WholeCheckpoint> opened = checkpoint::OpenWholeCheckpoint(path);
  // It was there a moment ago: this is not the absence that a first start may find.
  if (absl::IsNotFound(opened.status())) {
    return absl::UnavailableError(opened.status().message());
  }
  MUSTER_RETURN_IF_ERROR(opened.status());
  plan::LossScaler read_scaler = scaler;
  int64_t skipped = 0;
  MUSTER_RETURN_IF_ERROR(ReadCounters(opened->state, path, read_scaler, skipped));
  MUSTER_RETURN_IF_ERROR(
      engine::CheckSameModel(store, program.types.master, plan.update, *opened, path));
  return opened;
}

// Rank 0 reads array by array and hands each on; `from` is empty on the others. Then values follow their masters
// as after so many updates.
absl::Status Engine::State::TakeArrays(const checkpoint::WholeCheckpoint* from, int64_t updates) {
  const std::vector<plan::Program> stages = StagePrograms();
  std::optional<engine::ValueRounding> rounding;
  if (plan.update.stochastic_rounding) rounding = {RoundingKey(), updates};
  const engine::StateExchange exchange(world, held, stages, rounding);
  const engine::CheckpointArrays all = ArraysOfCheckpoint();
  for (size_t i = 0; i < all.size(); ++i) {
    const engine::StateArray& array = all[i];
    const Tensor memory = all.MemoryOf(i);
    absl::StatusOr<std::string> read = std::string();
    if (from != nullptr) {
      const bool is_value = array.kind == engine::StateKind::kValue;
      const checkpoint::SafetensorsFile& file = is_value ? from->model : from->optimizer;
      const absl::Status status = file.Read(array.name, engine::BufferOfTensor(memory));
      if (!status.ok()) read = status;
    }
    MUSTER_ASSIGN_OR_RETURN(const int64_t next,
                            TellNext(read.ok() ? static_cast<int64_t>(i) : kNoArray));
    if (next == kNoArray) return FromRankZero(world, std::move(read)).status();
    MUSTER_RETURN_IF_ERROR(exchange.Spread(array.kind, *array.parameter, memory));
    Mark(Phase::kLoad);
  }
  decision->Begin(updates);
  for (size_t b = 0; b < program.buckets.size(); ++b) RoundMasters(static_cast<int>(b));
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> Engine::Load(const std::string& directory) {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  state.Mark(Phase::kLoad);
  absl::StatusOr<checkpoint::WholeCheckpoint> opened = absl::UnknownError("not on this rank");
  absl::StatusOr<std::string> head = std::string();
  if (state.world.rank() == 0) {
    opened = state.OpenCheckpoint(directory);
    head = HeadOf(opened);
  }
  MUSTER_ASSIGN_OR_RETURN(head, FromRankZero(state.world, head));
  const nlohmann::json fields = nlohmann::json::parse(*head);
  const checkpoint::TrainingState loaded = {
      .step = fields["step"].get<int64_t>(),
      .counters = fields["counters"].get<std::map<std::string, std::string>>()};
  plan::LossScaler scaler = state.scaler;
  int64_t skipped_steps = 0;
  MUSTER_RETURN_IF_ERROR(ReadCounters(loaded, directory, scaler, skipped_steps));
  MUSTER_RETURN_IF_ERROR(
      state.TakeArrays(opened.ok() ? &*opened : nullptr, loaded.step - skipped_steps));
  MUSTER_ASSIGN_OR_RETURN(const std::string hash, ParameterHash());
  MUSTER_RETURN_IF_ERROR(CheckSameState(
      state.world, hash, absl::StrCat("after the checkpoint in ", directory, " was loaded")));
  state.step = loaded.step;
  state.scaler = scaler;
  state.skipped_steps = skipped_steps;
  state.Mark(Phase::kIdle);
  return fields["metadata"].get<std::map<std::string, std::string>>();
}

}  // namespace muster

// Save and load: the state of all ranks passes through rank 0, array by array.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/moment_exchange.h"
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

absl::Status NoPipelineError() {
  return absl::UnimplementedError(
      "this version saves and loads models that are whole on each rank, not stages of a pipeline");
}

}  // namespace

absl::Status Engine::Save(const std::string& directory,
                          const std::map<std::string, std::string>& metadata) {
  State& state = *state_;
  if (state.is_pipeline()) return NoPipelineError();
  state.Mark(Phase::kSave);
  const engine::MomentExchange exchange(state.world, state.held, state.program);
  engine::WholeMoments moments;
  exchange.Allocate(moments);
  MUSTER_RETURN_IF_ERROR(exchange.Collect(moments));
  absl::StatusOr<std::string> written = std::string();
  if (state.world.rank() == 0) {
    checkpoint::TrainingState saved = {
        .step = state.step, .metadata = metadata, .counters = state.scaler.Save()};
    saved.written_by = {state.fence.instance, state.fence.round};
    saved.counters[kSkippedSteps] = absl::StrCat(state.skipped_steps);
    for (const auto& [key, value] : Describe(state.plan)) saved.plan[key] = value;
    written = checkpoint::WriteWholeCheckpoint(
        directory, saved, engine::ParameterArrays(state.store),
        engine::MomentArrays(state.store, state.held, state.plan.update, moments),
        [&state] { state.Mark(Phase::kSave); },
        [&state] {
          return state.fence.commit ? state.fence.commit(state.step) : absl::OkStatus();
        });
  }
  const absl::Status saved = FromRankZero(state.world, std::move(written)).status();
  state.Mark(Phase::kIdle);
  return saved;
}

// Step, counters and metadata as JSON, for the other ranks.
absl::StatusOr<std::string> Engine::State::ReadCheckpoint(const std::string& directory,
                                                          const engine::WholeMoments& moments) {
  MUSTER_ASSIGN_OR_RETURN(const std::string path, checkpoint::FindWholeCheckpoint(directory));
  const absl::StatusOr<checkpoint::WholeCheckpoint> opened = checkpoint::OpenWholeCheckpoint(path);
  // It was there a moment ago: this is not the absence that a first start may find.
  if (absl::IsNotFound(opened.status())) {
    return absl::UnavailableError(opened.status().message());
  }
  MUSTER_RETURN_IF_ERROR(opened.status());
  const checkpoint::TrainingState& saved = opened->state;
  plan::LossScaler read_scaler = scaler;
  int64_t skipped = 0;
  MUSTER_RETURN_IF_ERROR(ReadCounters(saved, path, read_scaler, skipped));
  MUSTER_RETURN_IF_ERROR(engine::ReadState(*opened, path, store, held, plan.update, moments,
                                           [this] { Mark(Phase::kLoad); }));
  const nlohmann::json head = {
      {"step", saved.step}, {"counters", saved.counters}, {"metadata", saved.metadata}};
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::map<std::string, std::string>> Engine::Load(const std::string& directory) {
  State& state = *state_;
  if (state.is_pipeline()) return NoPipelineError();
  state.Mark(Phase::kLoad);
  const engine::MomentExchange exchange(state.world, state.held, state.program);
  engine::WholeMoments moments;
  exchange.Allocate(moments);
  absl::StatusOr<std::string> read = std::string();
  if (state.world.rank() == 0) read = state.ReadCheckpoint(directory, moments);
  MUSTER_ASSIGN_OR_RETURN(const std::string head, FromRankZero(state.world, read));
  std::vector<Tensor> whole = {state.held.Values(state.program.blocks)};
  whole.push_back(state.held.frozen());
  if (!state.program.sharded) whole.insert(whole.end(), {moments.first, moments.second});
  for (const Tensor& flat : whole) {
    if (flat.empty()) continue;
    MUSTER_RETURN_IF_ERROR(state.world.Broadcast(engine::BufferOfTensor(flat), 0).Wait());
  }
  MUSTER_RETURN_IF_ERROR(exchange.Spread(moments));
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(state.world, ParameterHash(),
                     absl::StrCat("after the checkpoint in ", directory, " was loaded")));
  const nlohmann::json fields = nlohmann::json::parse(head);
  const checkpoint::TrainingState loaded = {
      .step = fields["step"].get<int64_t>(),
      .counters = fields["counters"].get<std::map<std::string, std::string>>()};
  state.step = loaded.step;
  state.skipped_steps = 0;
  MUSTER_RETURN_IF_ERROR(ReadCounters(loaded, directory, state.scaler, state.skipped_steps));
  state.Mark(Phase::kIdle);
  return fields["metadata"].get<std::map<std::string, std::string>>();
}

}  // namespace muster

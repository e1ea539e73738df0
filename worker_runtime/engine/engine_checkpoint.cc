// Save and load: the state of all ranks passes through rank 0, array by array.
#include <utility>

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
    checkpoint::TrainingState saved = {.step = state.step, .metadata = metadata};
    for (const auto& [key, value] : Describe(state.plan)) saved.plan[key] = value;
    written =
        checkpoint::WriteWholeCheckpoint(directory, saved, engine::ParameterArrays(state.store),
                                         engine::MomentArrays(state.store, state.held, moments),
                                         [&state] { state.Mark(Phase::kSave); });
  }
  const absl::Status saved = FromRankZero(state.world, std::move(written)).status();
  state.Mark(Phase::kIdle);
  return saved;
}

// Step and metadata as JSON, for the other ranks.
absl::StatusOr<std::string> Engine::State::ReadCheckpoint(const std::string& directory,
                                                          const engine::WholeMoments& moments) {
  MUSTER_ASSIGN_OR_RETURN(const std::string path, checkpoint::FindWholeCheckpoint(directory));
  const absl::StatusOr<checkpoint::WholeCheckpoint> opened = checkpoint::OpenWholeCheckpoint(path);
  // It was there a moment ago: this is not the absence that a first start may find.
  if (absl::IsNotFound(opened.status())) {
    return absl::UnavailableError(opened.status().message());
  }
  MUSTER_RETURN_IF_ERROR(opened.status());
  MUSTER_RETURN_IF_ERROR(
      engine::ReadState(*opened, path, store, held, moments, [this] { Mark(Phase::kLoad); }));
  const checkpoint::TrainingState& saved = opened->state;
  const nlohmann::json head = {{"step", saved.step}, {"metadata", saved.metadata}};
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
  if (!state.program.sharded) whole.insert(whole.end(), {moments.first, moments.second});
  for (const Tensor& flat : whole) {
    MUSTER_RETURN_IF_ERROR(state.world.Broadcast(engine::BufferOfTensor(flat), 0).Wait());
  }
  MUSTER_RETURN_IF_ERROR(exchange.Spread(moments));
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(state.world, ParameterHash(),
                     absl::StrCat("after the checkpoint in ", directory, " was loaded")));
  const nlohmann::json fields = nlohmann::json::parse(head);
  state.step = fields["step"].get<int64_t>();
  state.Mark(Phase::kIdle);
  return fields["metadata"].get<std::map<std::string, std::string>>();
}

}  // namespace muster

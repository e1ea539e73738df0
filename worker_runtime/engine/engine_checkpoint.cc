#include <utility>

#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/agreement.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/state_file.h"

namespace muster {

absl::Status Engine::Save(const std::string& directory,
                          const std::map<std::string, std::string>& metadata) {
  State& state = *state_;
  state.Mark(Phase::kSave);
  absl::StatusOr<std::string> written = std::string();
  if (state.world.rank() == 0) {
    checkpoint::TrainingState saved = {.step = state.step, .metadata = metadata};
    for (const auto& [key, value] : Describe(state.plan)) saved.plan[key] = value;
    written = checkpoint::WriteWholeCheckpoint(directory, saved,
                                               engine::ParameterArrays(state.store, state.flat),
                                               engine::MomentArrays(state.store, state.flat));
  }
  const absl::Status saved = engine::FromRankZero(state.world, std::move(written)).status();
  state.Mark(Phase::kIdle);
  return saved;
}

// Step and metadata as JSON, for the other ranks.
absl::StatusOr<std::string> Engine::State::ReadCheckpoint(const std::string& directory) {
  MUSTER_ASSIGN_OR_RETURN(const std::string path, checkpoint::FindWholeCheckpoint(directory));
  MUSTER_ASSIGN_OR_RETURN(const checkpoint::WholeCheckpoint from,
                          checkpoint::OpenWholeCheckpoint(path));
  MUSTER_RETURN_IF_ERROR(engine::ReadState(from, path, store, flat));
  const nlohmann::json head = {{"step", from.state.step}, {"metadata", from.state.metadata}};
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::map<std::string, std::string>> Engine::Load(const std::string& directory) {
  State& state = *state_;
  state.Mark(Phase::kLoad);
  absl::StatusOr<std::string> read = std::string();
  if (state.world.rank() == 0) read = state.ReadCheckpoint(directory);
  MUSTER_ASSIGN_OR_RETURN(const std::string head, engine::FromRankZero(state.world, read));
  for (const Tensor& flat :
       {state.flat.values(), state.flat.first_moments(), state.flat.second_moments()}) {
    const Buffer buffer = {flat.raw_data(), flat.num_elements(), flat.dtype()};
    MUSTER_RETURN_IF_ERROR(state.world.Broadcast(buffer, 0).Wait());
  }
  const nlohmann::json fields = nlohmann::json::parse(head);
  state.step = fields["step"].get<int64_t>();
  state.Mark(Phase::kIdle);
  return fields["metadata"].get<std::map<std::string, std::string>>();
}

}  // namespace muster

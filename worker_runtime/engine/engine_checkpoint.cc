// Save and load: the state of all ranks passes through one of them, array by array.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/state_exchange.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster {
namespace {

constexpr char kSkippedSteps[] = "skipped_steps";

// Fills both from the counters of `saved`.
absl::Status ReadCounters(const checkpoint::TrainingState& saved, const std::string& name,
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
  return absl::Status(status.code(), absl::StrCat(name, " is damaged: ", status.message()));
}

constexpr int64_t kNoArray = -1;

// Step, counters, metadata and plan as JSON, for the other ranks.
absl::StatusOr<std::string> Encode(const absl::StatusOr<checkpoint::TrainingState>& state) {
  MUSTER_RETURN_IF_ERROR(state.status());
  const nlohmann::json head = {{"step", state->step},
                               {"counters", state->counters},
                               {"metadata", state->metadata},
                               {"plan", state->plan}};
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

checkpoint::TrainingState Decode(const std::string& text) {
  using Texts = std::map<std::string, std::string>;
  const nlohmann::json head = nlohmann::json::parse(text);
  return {.step = head["step"].get<int64_t>(),
          .plan = head["plan"].get<Texts>(),
          .metadata = head["metadata"].get<Texts>(),
          .counters = head["counters"].get<Texts>()};
}

// Beside the metadata of a base, on its way to all ranks.
constexpr char kArraysHash[] = " SHA-256 of the arrays";

std::string HashOf(const checkpoint::ArrayChecksums& checksums) {
  Sha256 hash;
  for (const auto& [name, checksum] : checksums) hash.Add(absl::StrCat(name, "=", checksum, "\n"));
  return hash.Finish();
}

std::string NameOf(const std::string& path) { return absl::StrCat("the checkpoint ", path); }

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

std::vector<plan::Program> Engine::State::ProgramsOfPlaces() const {
  std::vector<plan::Program> programs;
  for (int other = 0; other < set_up.mesh.stages; ++other) {
    programs.push_back(other == place() ? program
                                        : plan::CompileProgram(set_up.InputOf(plan, store.dtype()),
                                                               other * set_up.mesh.replicas));
  }
  return programs;
}

// All arrays of a checkpoint in one order, and memory for the largest.
engine::CheckpointArrays Engine::State::ArraysOfCheckpoint() {
  return WithMemory({.model = engine::ModelArrays(store),
                     .optimizer = engine::OptimizerArrays(store, plan.update)});
}

engine::CheckpointArrays Engine::State::WithMemory(engine::CheckpointArrays all) const {
  int64_t most = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    most = std::max(most, all[i].parameter->num_elements());
  }
  const DType dtype = program.types.master;  // and the moments'
  all.memory = all.pool->Allocate(dtype, {most});
  return all;
}

// What rank `root` says to the others: the array that it writes or has read next, or that there is
// none. It may have been at its disk for hours.
absl::StatusOr<int64_t> Engine::State::TellNext(int64_t array, int root) {
  std::vector<int64_t> told = {array};
  MUSTER_RETURN_IF_ERROR(
      world.Broadcast(BufferOf(told), root, {.timeout = absl::InfiniteDuration()}).Wait());
  return told[0];
}

checkpoint::TrainingState Engine::State::HeadOfState() const {
  checkpoint::TrainingState head = {.step = step, .counters = scaler.Save()};
  head.counters[kSkippedSteps] = absl::StrCat(skipped_steps);
  return head;
}

absl::StatusOr<std::string> Engine::State::WriteCheckpoint(
    const std::string& directory, const std::map<std::string, std::string>& metadata) {
  checkpoint::TrainingState saved = HeadOfState();
  saved.metadata = metadata;
  saved.written_by = {fence.instance, fence.round};
  for (const auto& [key, value] : Describe(plan)) saved.plan[key] = value;
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
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
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
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

absl::StatusOr<checkpoint::NewestCheckpoint> Engine::State::OpenCheckpoint(
    const std::string& directory) {
  const auto fits = [this](const checkpoint::WholeCheckpoint& opened, const std::string& path) {
    plan::LossScaler read_scaler = scaler;
    int64_t skipped = 0;
    MUSTER_RETURN_IF_ERROR(ReadCounters(opened.state, NameOf(path), read_scaler, skipped));
    return engine::CheckSameModel(store, program.types.master, plan.update,
                                  {opened.model.arrays(), opened.optimizer.arrays(), NameOf(path)});
  };
  return checkpoint::OpenNewestCheckpoint(
      directory, [this] { Mark(Phase::kLoad); }, fits);
}

// Values follow their masters as after so many updates.
absl::Status Engine::State::TakeArrays(const StateSource& source, int64_t updates) {
  std::optional<engine::ValueRounding> rounding;
  if (plan.update.stochastic_rounding) rounding = {RoundingKey(), updates};
  MUSTER_RETURN_IF_ERROR(SpreadArrays(source, ArraysOfCheckpoint(), rounding));
  decision->Begin(updates);
  for (size_t b = 0; b < plan::LearnedBuckets(program).size(); ++b) {
    RoundMasters(static_cast<int>(b));
  }
  return absl::OkStatus();
}

// The source's rank reads array by array and hands each on.
absl::Status Engine::State::SpreadArrays(const StateSource& source,
                                         const engine::CheckpointArrays& all,
                                         std::optional<engine::ValueRounding> rounding) {
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const engine::StateExchange exchange(world, held, stages, rounding);
  for (size_t i = 0; i < all.size(); ++i) {
    const engine::StateArray& array = all[i];
    const Tensor memory = all.MemoryOf(i);
    absl::StatusOr<std::string> read = std::string();
    if (world.rank() == source.rank) {
      const absl::Status status = source.read(array, memory);
      if (!status.ok()) read = status;
    }
    MUSTER_ASSIGN_OR_RETURN(const int64_t next,
                            TellNext(read.ok() ? static_cast<int64_t>(i) : kNoArray, source.rank));
    if (next == kNoArray) return FromRank(world, source.rank, std::move(read)).status();
    is_torn = true;
    MUSTER_RETURN_IF_ERROR(exchange.Spread(array.kind, *array.parameter, memory, source.rank));
    Mark(Phase::kLoad);
  }
  return absl::OkStatus();
}

absl::StatusOr<checkpoint::TrainingState> Engine::State::TakeState(const StateSource& source) {
  absl::StatusOr<std::string> head = std::string();
  if (world.rank() == source.rank) head = Encode(source.own);
  MUSTER_ASSIGN_OR_RETURN(head, FromRank(world, source.rank, std::move(head)));
  const checkpoint::TrainingState taken = Decode(*head);
  plan::LossScaler new_scaler = scaler;
  int64_t new_skipped_steps = 0;
  MUSTER_RETURN_IF_ERROR(ReadCounters(taken, source.name, new_scaler, new_skipped_steps));
  MUSTER_RETURN_IF_ERROR(TakeArrays(source, taken.step - new_skipped_steps));
  MUSTER_ASSIGN_OR_RETURN(const std::string hash, HashParameters());
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(world, hash, absl::StrCat("after ", source.name, " was loaded")));
  step = taken.step;
  scaler = new_scaler;
  skipped_steps = new_skipped_steps;
  is_torn = false;
  return taken;
}

absl::StatusOr<Engine::Loaded> Engine::Load(const std::string& directory) {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  state.Mark(Phase::kLoad);
  absl::StatusOr<checkpoint::NewestCheckpoint> opened = absl::UnknownError("not on this rank");
  absl::StatusOr<checkpoint::TrainingState> head = opened.status();
  if (state.world.rank() == 0) {
    opened = state.OpenCheckpoint(directory);
    if (opened.ok()) {
      head = opened->checkpoint.state;
    } else {
      head = opened.status();
    }
  }
  MUSTER_ASSIGN_OR_RETURN(
      const checkpoint::TrainingState loaded,
      state.TakeState({.rank = 0,
                       .name = NameOf(directory),
                       .own = std::move(head),
                       .read = [&](const engine::StateArray& array, const Tensor& memory) {
                         const bool is_value = array.kind == engine::StateKind::kValue;
                         return (is_value ? opened->checkpoint.model : opened->checkpoint.optimizer)
                             .Read(array.name, engine::BufferOfTensor(memory));
                       }}));
  state.Mark(Phase::kIdle);
  return Loaded{.metadata = loaded.metadata,
                .plan = loaded.plan,
                .passed_over = opened.ok() ? opened->passed_over : std::vector<std::string>()};
}

absl::StatusOr<checkpoint::NewestCheckpoint> Engine::State::OpenBase(const std::string& directory) {
  const auto fits = [this](const checkpoint::WholeCheckpoint& opened, const std::string& path) {
    return engine::CheckIsBase(store, program.types.master, opened.model.arrays(), NameOf(path));
  };
  return checkpoint::OpenNewestCheckpoint(
      directory, [this] { Mark(Phase::kLoad); }, fits);
}

absl::StatusOr<Engine::Loaded> Engine::LoadBase(const std::string& directory) {
  State& state = *state_;
  MUSTER_RETURN_IF_ERROR(state.LeaveAlone());
  state.Mark(Phase::kLoad);
  absl::StatusOr<checkpoint::NewestCheckpoint> opened = absl::UnknownError("not on this rank");
  absl::StatusOr<checkpoint::TrainingState> own = opened.status();
  if (state.world.rank() == 0) {
    opened = state.OpenBase(directory);
    if (opened.ok()) {
      own = opened->checkpoint.state;
      own->metadata[kArraysHash] = HashOf(own->model_sha256);
    } else {
      own = opened.status();
    }
  }
  absl::StatusOr<std::string> head = std::string();
  if (state.world.rank() == 0) head = Encode(own);
  MUSTER_ASSIGN_OR_RETURN(head, FromRank(state.world, 0, std::move(head)));
  const auto read = [&](const engine::StateArray& array, const Tensor& memory) {
    return opened->checkpoint.model.Read(array.name, engine::BufferOfTensor(memory));
  };
  const State::StateSource source = {
      .rank = 0, .name = NameOf(directory), .own = std::move(own), .read = read};
  MUSTER_RETURN_IF_ERROR(state.SpreadArrays(
      source, state.WithMemory({.model = engine::BaseArrays(state.store)}), std::nullopt));
  MUSTER_ASSIGN_OR_RETURN(const std::string hash, state.HashParameters());
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(state.world, hash, absl::StrCat("after ", source.name, " was loaded")));
  state.is_torn = false;
  state.Mark(Phase::kIdle);
  checkpoint::TrainingState loaded = Decode(*head);
  std::string hash_of_arrays = std::move(loaded.metadata.extract(kArraysHash).mapped());
  return Loaded{.metadata = std::move(loaded.metadata),
                .plan = std::move(loaded.plan),
                .arrays_sha256 = std::move(hash_of_arrays),
                .passed_over = opened.ok() ? opened->passed_over : std::vector<std::string>()};
}

}  // namespace muster

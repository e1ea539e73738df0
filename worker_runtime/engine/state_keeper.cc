#include "worker_runtime/engine/state_keeper.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster::engine {
namespace {

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

// The key of the hash beside the metadata of a base, on its way to all ranks.
constexpr char kArraysHash[] = " SHA-256 of the arrays";

std::string HashOf(const checkpoint::ArrayChecksums& checksums) {
  Sha256 hash;
  for (const auto& [name, checksum] : checksums) hash.Add(absl::StrCat(name, "=", checksum, "\n"));
  return hash.Finish();
}

std::string NameOf(const std::string& path) { return absl::StrCat("the checkpoint ", path); }

// --- of a snapshot

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

absl::Status StateKeeper::Save(const std::string& directory,
                               const std::map<std::string, std::string>& metadata) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kSave);
  absl::StatusOr<std::string> written = std::string();
  if (rig_.world.rank() == 0) {
    written = WriteCheckpoint(directory, metadata);
    const absl::Status told = TellNext(kNoArray).status();
    if (written.ok()) MUSTER_RETURN_IF_ERROR(told);
  } else {
    MUSTER_RETURN_IF_ERROR(GiveArrays());
  }
  const absl::Status saved = FromRankZero(rig_.world, std::move(written)).status();
  listeners_.Mark(Phase::kIdle);
  return saved;
}

std::vector<plan::Program> StateKeeper::ProgramsOfPlaces() const {
  std::vector<plan::Program> programs;
  const plan::ProgramInput input = rig_.set_up.InputOf(rig_.plan);
  for (int other = 0; other < rig_.set_up.mesh.stages; ++other) {
    programs.push_back(other == rig_.place()
                           ? rig_.program
                           : plan::CompileProgram(input, other * rig_.set_up.mesh.replicas));
  }
  return programs;
}

CheckpointArrays StateKeeper::ArraysOfCheckpoint() const {
  return WithMemory({.model = ModelArrays(rig_.store),
                     .optimizer = OptimizerArrays(rig_.store, rig_.plan.update)});
}

CheckpointArrays StateKeeper::WithMemory(CheckpointArrays all) const {
  int64_t most = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    most = std::max(most, all[i].parameter->num_elements());
  }
  const DType dtype = rig_.program.types.master;  // and the moments'
  all.memory = all.pool->Allocate(dtype, {most});
  return all;
}

// What rank `root` says to the others: the array that it writes or has read next, or that there is
// none. It may have been at its disk for hours.
absl::StatusOr<int64_t> StateKeeper::TellNext(int64_t array, int root) {
  std::vector<int64_t> told = {array};
  MUSTER_RETURN_IF_ERROR(
      rig_.world.Broadcast(BufferOf(told), root, {.timeout = absl::InfiniteDuration()}).Wait());
  return told[0];
}

absl::StatusOr<std::string> StateKeeper::WriteCheckpoint(
    const std::string& directory, const std::map<std::string, std::string>& metadata) {
  checkpoint::TrainingState saved = progress_.Save();
  saved.metadata = metadata;
  saved.written_by = {fence_.instance, fence_.round};
  for (const auto& [key, value] : Describe(rig_.plan)) saved.plan[key] = value;
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages);
  const CheckpointArrays all = ArraysOfCheckpoint();
  const auto fill = [&](size_t index) -> absl::Status {
    MUSTER_RETURN_IF_ERROR(TellNext(static_cast<int64_t>(index)).status());
    return exchange.Collect(all[index].kind, *all[index].parameter, all.MemoryOf(index));
  };
  return checkpoint::WriteWholeCheckpoint(
      directory, saved, NamedArrays(all.model, rig_.program.types.master, all.memory),
      NamedArrays(all.optimizer, rig_.program.types.master, all.memory),
      [this] { listeners_.Mark(Phase::kSave); },
      [this] { return fence_.commit ? fence_.commit(progress_.step) : absl::OkStatus(); }, fill);
}

absl::Status StateKeeper::GiveArrays() {
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages);
  const CheckpointArrays all = ArraysOfCheckpoint();
  for (;;) {
    MUSTER_ASSIGN_OR_RETURN(const int64_t next, TellNext(kNoArray));
    if (next == kNoArray) return absl::OkStatus();
    const StateArray& array = all[static_cast<size_t>(next)];
    MUSTER_RETURN_IF_ERROR(
        exchange.Collect(array.kind, *array.parameter, all.MemoryOf(static_cast<size_t>(next))));
  }
}

absl::StatusOr<checkpoint::NewestCheckpoint> StateKeeper::OpenCheckpoint(
    const std::string& directory) {
  const auto fits = [this](const checkpoint::WholeCheckpoint& opened, const std::string& path) {
    MUSTER_RETURN_IF_ERROR(progress_.Read(opened.state, NameOf(path)).status());
    return CheckSameModel(rig_.store, rig_.program.types.master, rig_.plan.update,
                          {opened.model.arrays(), opened.optimizer.arrays(), NameOf(path)});
  };
  return checkpoint::OpenNewestCheckpoint(
      directory, [this] { listeners_.Mark(Phase::kLoad); }, fits);
}

// Values follow their masters as after so many updates.
absl::Status StateKeeper::TakeArrays(const StateSource& source, int64_t updates) {
  std::optional<ValueRounding> rounding;
  if (rig_.plan.update.stochastic_rounding) rounding = {updater_.RoundingKey(), updates};
  MUSTER_RETURN_IF_ERROR(SpreadArrays(source, ArraysOfCheckpoint(), rounding));
  updater_.GoOnAfter(updates);
  return absl::OkStatus();
}

// The source's rank reads array by array and hands each on.
absl::Status StateKeeper::SpreadArrays(const StateSource& source, const CheckpointArrays& all,
                                       std::optional<ValueRounding> rounding) {
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages, rounding);
  for (size_t i = 0; i < all.size(); ++i) {
    const StateArray& array = all[i];
    const Tensor memory = all.MemoryOf(i);
    absl::StatusOr<std::string> read = std::string();
    if (rig_.world.rank() == source.rank) {
      const absl::Status status = source.read(array, memory);
      if (!status.ok()) read = status;
    }
    MUSTER_ASSIGN_OR_RETURN(const int64_t next,
                            TellNext(read.ok() ? static_cast<int64_t>(i) : kNoArray, source.rank));
    if (next == kNoArray) return FromRank(rig_.world, source.rank, std::move(read)).status();
    progress_.is_torn = true;
    MUSTER_RETURN_IF_ERROR(exchange.Spread(array.kind, *array.parameter, memory, source.rank));
    listeners_.Mark(Phase::kLoad);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateKeeper::HashParameters() {
  Sha256 hash;
  for (const auto& parameter : rig_.store.parameters()) {
    parameter->Enter();                        // gathered, one unit at a time
    if (parameter->value().empty()) continue;  // of another stage
    MUSTER_ASSIGN_OR_RETURN(const Tensor value, OnHost(rig_.queue, parameter->value()));
    hash.Add(parameter->name()).Add("\n");
    hash.Add(value.raw_data(), value.num_bytes());
  }
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  return hash.Finish();
}

absl::StatusOr<checkpoint::TrainingState> StateKeeper::TakeState(const StateSource& source) {
  absl::StatusOr<std::string> head = std::string();
  if (rig_.world.rank() == source.rank) head = Encode(source.own);
  MUSTER_ASSIGN_OR_RETURN(head, FromRank(rig_.world, source.rank, std::move(head)));
  const checkpoint::TrainingState taken = Decode(*head);
  MUSTER_ASSIGN_OR_RETURN(const TrainingProgress read, progress_.Read(taken, source.name));
  MUSTER_RETURN_IF_ERROR(TakeArrays(source, read.updates()));
  MUSTER_ASSIGN_OR_RETURN(const std::string hash, HashParameters());
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(rig_.world, hash, absl::StrCat("after ", source.name, " was loaded")));
  progress_ = read;
  return taken;
}

absl::StatusOr<Engine::Loaded> StateKeeper::Load(const std::string& directory) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  absl::StatusOr<checkpoint::NewestCheckpoint> opened = absl::UnknownError("not on this rank");
  absl::StatusOr<checkpoint::TrainingState> head = opened.status();
  if (rig_.world.rank() == 0) {
    opened = OpenCheckpoint(directory);
    if (opened.ok()) {
      head = opened->checkpoint.state;
    } else {
      head = opened.status();
    }
  }
  MUSTER_ASSIGN_OR_RETURN(
      const checkpoint::TrainingState loaded,
      TakeState({.rank = 0,
                 .name = NameOf(directory),
                 .own = std::move(head),
                 .read = [&](const StateArray& array, const Tensor& memory) {
                   const bool is_value = array.kind == StateKind::kValue;
                   return (is_value ? opened->checkpoint.model : opened->checkpoint.optimizer)
                       .Read(array.name, BufferOfTensor(memory));
                 }}));
  listeners_.Mark(Phase::kIdle);
  return Engine::Loaded{
      .metadata = loaded.metadata,
      .plan = loaded.plan,
      .passed_over = opened.ok() ? opened->passed_over : std::vector<std::string>()};
}

absl::StatusOr<checkpoint::NewestCheckpoint> StateKeeper::OpenBase(const std::string& directory) {
  const auto fits = [this](const checkpoint::WholeCheckpoint& opened, const std::string& path) {
    return CheckIsBase(rig_.store, rig_.program.types.master, opened.model.arrays(), NameOf(path));
  };
  return checkpoint::OpenNewestCheckpoint(
      directory, [this] { listeners_.Mark(Phase::kLoad); }, fits);
}

absl::StatusOr<Engine::Loaded> StateKeeper::LoadBase(const std::string& directory) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  absl::StatusOr<checkpoint::NewestCheckpoint> opened = absl::UnknownError("not on this rank");
  absl::StatusOr<checkpoint::TrainingState> own = opened.status();
  if (rig_.world.rank() == 0) {
    opened = OpenBase(directory);
    if (opened.ok()) {
      own = opened->checkpoint.state;
      own->metadata[kArraysHash] = HashOf(own->model_sha256);
    } else {
      own = opened.status();
    }
  }
  absl::StatusOr<std::string> head = std::string();
  if (rig_.world.rank() == 0) head = Encode(own);
  MUSTER_ASSIGN_OR_RETURN(head, FromRank(rig_.world, 0, std::move(head)));
  const auto read = [&](const StateArray& array, const Tensor& memory) {
    return opened->checkpoint.model.Read(array.name, BufferOfTensor(memory));
  };
  const StateSource source = {
      .rank = 0, .name = NameOf(directory), .own = std::move(own), .read = read};
  MUSTER_RETURN_IF_ERROR(
      SpreadArrays(source, WithMemory({.model = BaseArrays(rig_.store)}), std::nullopt));
  MUSTER_ASSIGN_OR_RETURN(const std::string hash, HashParameters());
  MUSTER_RETURN_IF_ERROR(
      CheckSameState(rig_.world, hash, absl::StrCat("after ", source.name, " was loaded")));
  progress_.is_torn = false;
  listeners_.Mark(Phase::kIdle);
  checkpoint::TrainingState loaded = Decode(*head);
  std::string hash_of_arrays = std::move(loaded.metadata.extract(kArraysHash).mapped());
  return Engine::Loaded{
      .metadata = std::move(loaded.metadata),
      .plan = std::move(loaded.plan),
      .arrays_sha256 = std::move(hash_of_arrays),
      .passed_over = opened.ok() ? opened->passed_over : std::vector<std::string>()};
}

absl::Status StateKeeper::CheckHoldsWholeState() const {
  if (rig_.is_pipeline()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan ", rig_.plan.preset, ": no rank has the whole state, each holds one of ",
                     rig_.set_up.mesh.stages, " stages"));
  }
  if (rig_.program.shards.size > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "plan ", rig_.plan.preset, ": no rank has the whole state, which is spread over ",
        rig_.program.shards.size, " ranks"));
  }
  if (progress_.is_torn) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of no step: what failed after step ", progress_.step,
                     " had begun to change parameters and optimizer"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateCopy>> StateKeeper::Copy() {
  MUSTER_RETURN_IF_ERROR(CheckHoldsWholeState());
  auto taken = std::make_unique<StateCopy>();
  taken->head = progress_.Save();
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages);
  TensorPool host;
  const auto copy = [&](const std::vector<StateArray>& arrays, Arrays& to) -> absl::Status {
    for (const StateArray& array : arrays) {
      const Parameter& parameter = *array.parameter;
      const Tensor memory = host.Allocate(rig_.program.types.master, parameter.shape());
      MUSTER_RETURN_IF_ERROR(
          exchange.CopyOwn(array.kind, parameter, memory.Reshaped({parameter.num_elements()})));
      to.emplace(array.name, memory);
    }
    return absl::OkStatus();
  };
  MUSTER_RETURN_IF_ERROR(copy(ModelArrays(rig_.store), taken->model));
  MUSTER_RETURN_IF_ERROR(copy(OptimizerArrays(rig_.store, rig_.plan.update), taken->optimizer));
  return taken;
}

absl::Status StateKeeper::CheckCopy(const StateCopy& copy, const std::string& name) const {
  const ArrayTable model = TableOf(copy.model);
  const ArrayTable optimizer = TableOf(copy.optimizer);
  return CheckSameModel(rig_.store, rig_.program.types.master, rig_.plan.update,
                        {model, optimizer, name});
}

absl::StatusOr<Engine::Restored> StateKeeper::Restore(const StateCopy* own) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  const std::vector<int64_t> own_step = {own == nullptr ? kNoState : own->head.step};
  std::vector<int64_t> steps(rig_.world.size());
  MUSTER_RETURN_IF_ERROR(rig_.world.AllGather(ConstBufferOf(own_step), BufferOf(steps)).Wait());
  const auto newest = std::max_element(steps.begin(), steps.end());
  if (*newest == kNoState) {
    return absl::NotFoundError(
        absl::StrCat("none of ", rig_.world.size(), " ranks has the whole state of the training"));
  }
  const int giver = static_cast<int>(newest - steps.begin());
  absl::StatusOr<checkpoint::TrainingState> head = absl::UnknownError("not on this rank");
  if (rig_.world.rank() == giver) {
    head = own->head;
    absl::Status checked = CheckCopy(*own, NameOf(giver));
    if (!checked.ok()) head = std::move(checked);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const checkpoint::TrainingState taken,
      TakeState({.rank = giver,
                 .name = NameOf(giver),
                 .own = std::move(head),
                 .read = [&](const StateArray& array, const Tensor& memory) {
                   const bool is_value = array.kind == StateKind::kValue;
                   const Arrays& arrays = is_value ? own->model : own->optimizer;
                   const Tensor& from = arrays.at(array.name);
                   return CopyAcross(rig_.queue, from.Reshaped(memory.shape()), memory);
                 }}));
  listeners_.Mark(Phase::kIdle);
  return Engine::Restored{.rank = giver, .step = taken.step};
}

}  // namespace muster::engine

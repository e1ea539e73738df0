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

// A checkpoint is read by one rank.
int RankZero(size_t) { return 0; }

std::string NameOf(const std::string& path) { return absl::StrCat("the checkpoint ", path); }

// --- of a snapshot

ArrayTable TableOf(const std::map<std::string, ArrayPart>& arrays) {
  ArrayTable table;
  for (const auto& [name, part] : arrays) table[name] = part.whole;
  return table;
}

// The place of each array when all lie one after the other.
std::vector<ElementRange> PlacesOf(absl::Span<const StateArray> arrays) {
  std::vector<ElementRange> places;
  int64_t end = 0;
  for (const StateArray& array : arrays) {
    const int64_t begin = std::exchange(end, end + array.parameter->num_elements());
    places.push_back({begin, end});
  }
  return places;
}

// Elements `wanted` of an array, which `part` has.
//
// Shapes: to [wanted.size()]
absl::Status CopyElements(Queue& queue, const ArrayPart& part, ElementRange wanted,
                          const Tensor& to) {
  int64_t first = 0;  // of the range's elements, in `part`
  for (const ElementRange& range : part.ranges) {
    const ElementRange both = Overlap(range, wanted);
    if (both.size() > 0) {
      const Tensor from = part.elements.Slice(first + both.begin - range.begin, {both.size()});
      MUSTER_RETURN_IF_ERROR(
          CopyAcross(queue, from, to.Slice(both.begin - wanted.begin, {both.size()})));
    }
    first += range.size();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StateKeeper::Save(const std::string& directory,
                               const std::map<std::string, std::string>& metadata) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kSave);
  absl::StatusOr<std::string> written = std::string();
  if (rig_.world.rank() == 0) {
    written = WriteCheckpoint(directory, metadata);
    const absl::Status told = TellNext(kNoArray).status();
    if (!told.ok()) return written.ok() ? told : written.status();
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
    return rig_.Guard(
        exchange.Collect(all[index].kind, *all[index].parameter, all.MemoryOf(index)));
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
    MUSTER_RETURN_IF_ERROR(rig_.Guard(
        exchange.Collect(array.kind, *array.parameter, all.MemoryOf(static_cast<size_t>(next)))));
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

// Each array in turn is handed on by the rank that has it whole.
absl::Status StateKeeper::SpreadArrays(const StateSource& source, const CheckpointArrays& all,
                                       std::optional<ValueRounding> rounding) {
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages, rounding);
  for (size_t i = 0; i < all.size(); ++i) {
    const StateArray& array = all[i];
    const Tensor memory = all.MemoryOf(i);
    const int root = source.giver(i);
    absl::StatusOr<std::string> read = std::string();
    if (const absl::Status status = source.read(i, memory); !status.ok()) read = status;
    MUSTER_ASSIGN_OR_RETURN(const int64_t next,
                            TellNext(read.ok() ? static_cast<int64_t>(i) : kNoArray, root));
    if (next == kNoArray) return FromRank(rig_.world, root, std::move(read)).status();
    progress_.is_torn = true;
    MUSTER_RETURN_IF_ERROR(rig_.Guard(exchange.Spread(array.kind, *array.parameter, memory, root)));
    listeners_.Mark(Phase::kLoad);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateKeeper::HashParameters() {
  Sha256 hash;
  for (const auto& parameter : rig_.store.parameters()) {
    parameter->Enter();                        // gathered, one unit at a time
    if (parameter->value().empty()) continue;  // of another stage
    MUSTER_ASSIGN_OR_RETURN(const Tensor value, rig_.Guard(OnHost(rig_.queue, parameter->value())));
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
  const CheckpointArrays all = ArraysOfCheckpoint();
  const auto read = [&](size_t index, const Tensor& memory) {
    if (rig_.world.rank() != 0) return absl::OkStatus();
    const StateArray& array = all[index];
    const bool is_value = array.kind == StateKind::kValue;
    return (is_value ? opened->checkpoint.model : opened->checkpoint.optimizer)
        .Read(array.name, BufferOfTensor(memory));
  };
  MUSTER_ASSIGN_OR_RETURN(const checkpoint::TrainingState loaded,
                          TakeState({.rank = 0,
                                     .name = NameOf(directory),
                                     .own = std::move(head),
                                     .giver = RankZero,
                                     .read = read}));
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
  const CheckpointArrays all = WithMemory({.model = BaseArrays(rig_.store)});
  const auto read = [&](size_t index, const Tensor& memory) {
    if (rig_.world.rank() != 0) return absl::OkStatus();
    return opened->checkpoint.model.Read(all[index].name, BufferOfTensor(memory));
  };
  const StateSource source = {
      .rank = 0, .name = NameOf(directory), .own = std::move(own), .giver = RankZero, .read = read};
  MUSTER_RETURN_IF_ERROR(SpreadArrays(source, all, std::nullopt));
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

absl::StatusOr<ArrayPart> StateKeeper::CopyOwn(const StateExchange& exchange,
                                               const StateArray& array, TensorPool& host) const {
  const DType dtype = rig_.program.types.master;
  ArrayPart part = {.whole = {.dtype = dtype, .shape = Sizes(array.parameter->shape())},
                    .ranges = exchange.OwnRanges(*array.parameter)};
  int64_t size = 0;
  for (const ElementRange& range : part.ranges) size += range.size();
  if (size == 0) return part;
  part.elements = host.Allocate(dtype, {size});
  MUSTER_RETURN_IF_ERROR(exchange.CopyOwn(array.kind, *array.parameter, part.elements));
  return part;
}

absl::StatusOr<std::unique_ptr<StateCopy>> StateKeeper::Copy() {
  if (progress_.is_torn) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of no step: what failed after step ", progress_.step,
                     " had begun to change parameters and optimizer"));
  }
  auto taken = std::make_unique<StateCopy>();
  taken->head = progress_.Save();
  const std::vector<plan::Program> stages = ProgramsOfPlaces();
  const StateExchange exchange(rig_.world, rig_.held, stages);
  TensorPool host;
  for (const StateArray& array : ModelArrays(rig_.store)) {
    MUSTER_ASSIGN_OR_RETURN(taken->model[array.name], CopyOwn(exchange, array, host));
  }
  for (const StateArray& array : OptimizerArrays(rig_.store, rig_.plan.update)) {
    MUSTER_ASSIGN_OR_RETURN(taken->optimizer[array.name], CopyOwn(exchange, array, host));
  }
  return taken;
}

absl::Status StateKeeper::CheckCopy(const StateCopy& copy) const {
  const ArrayTable model = TableOf(copy.model);
  const ArrayTable optimizer = TableOf(copy.optimizer);
  // AllOrNone names the others.
  const char* name = rig_.world.rank() == 0 ? "the state of rank 0" : "its state";
  return CheckSameModel(rig_.store, rig_.program.types.master, rig_.plan.update,
                        {model, optimizer, name});
}

// A rank has the same elements of a parameter's value and of its moments.
absl::StatusOr<std::vector<StatePart>> StateKeeper::GatherParts(
    const StateCopy* own, absl::Span<const ElementRange> places) {
  std::vector<int64_t> mine;  // first and last, of each
  const std::vector<StateArray> arrays = ModelArrays(rig_.store);
  for (size_t i = 0; own != nullptr && i < arrays.size(); ++i) {
    for (const ElementRange& range : own->model.at(arrays[i].name).ranges) {
      mine.push_back(places[i].begin + range.begin);
      mine.push_back(places[i].begin + range.end);
    }
  }
  Communicator& world = rig_.world;
  const std::vector<int64_t> head = {own == nullptr ? kNoState : own->head.step,
                                     static_cast<int64_t>(mine.size())};
  std::vector<int64_t> heads(head.size() * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(head), BufferOf(heads)).Wait());
  int64_t most = 0;
  for (size_t rank = 0; rank < heads.size() / 2; ++rank) most = std::max(most, heads[2 * rank + 1]);
  mine.resize(most);
  std::vector<int64_t> all(most * world.size());
  if (most > 0) {
    MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(mine), BufferOf(all)).Wait());
  }
  std::vector<StatePart> parts(world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    parts[rank].step = heads[2 * rank];
    const int64_t* ends = all.data() + rank * most;
    for (int64_t i = 0; i < heads[2 * rank + 1]; i += 2) {
      parts[rank].ranges.push_back({ends[i], ends[i + 1]});
    }
  }
  return parts;
}

absl::Status StateKeeper::Assemble(const StateCopy* own, const StateArray& array,
                                   absl::Span<const SourceRange> sources, const Tensor& memory) {
  if (sources.empty()) return absl::OkStatus();  // no elements
  const int self = rig_.world.rank();
  const int giver = sources[0].rank;
  for (const auto& [rank, range] : sources) {
    const Tensor place = memory.Slice(range.begin, {range.size()});
    if (rank == self) {
      const bool is_value = array.kind == StateKind::kValue;
      const ArrayPart& part = (is_value ? own->model : own->optimizer).at(array.name);
      MUSTER_RETURN_IF_ERROR(CopyElements(rig_.queue, part, range, place));
      if (self != giver) {
        MUSTER_RETURN_IF_ERROR(rig_.world.Send(BufferOfTensor(place), giver).Wait());
      }
    } else if (self == giver) {
      MUSTER_RETURN_IF_ERROR(rig_.world.Recv(BufferOfTensor(place), rank).Wait());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Engine::Restored> StateKeeper::Restore(const StateCopy* own) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  MUSTER_RETURN_IF_ERROR(
      AllOrNone(rig_.world, own == nullptr ? absl::OkStatus() : CheckCopy(*own)));
  const CheckpointArrays all = ArraysOfCheckpoint();
  const std::vector<ElementRange> places = PlacesOf(all.model);
  const int64_t num_elements = places.empty() ? 0 : places.back().end;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<StatePart> parts, GatherParts(own, places));
  MUSTER_ASSIGN_OR_RETURN(const StateSources sources, ChooseSources(parts, num_elements));
  const std::vector<int> ranks = sources.Ranks();
  const Engine::Restored restored = {.step = sources.step,
                                     .rank = ranks.empty() ? 0 : ranks[0],
                                     .num_ranks = static_cast<int>(ranks.size())};
  std::map<const Parameter*, ElementRange> place_of;
  for (size_t i = 0; i < places.size(); ++i) place_of[all.model[i].parameter] = places[i];
  const auto sources_of = [&](size_t index) {
    const ElementRange place = place_of.at(all[index].parameter);
    std::vector<SourceRange> of_array = sources.Of(place);
    for (SourceRange& source : of_array) {
      source.range.begin -= place.begin;
      source.range.end -= place.begin;
    }
    return of_array;
  };
  absl::StatusOr<checkpoint::TrainingState> head = absl::UnknownError("not on this rank");
  if (rig_.world.rank() == restored.rank) head = own->head;
  MUSTER_RETURN_IF_ERROR(TakeState({.rank = restored.rank,
                                    .name = WhoseState(restored),
                                    .own = std::move(head),
                                    .giver =
                                        [&](size_t index) {
                                          const std::vector<SourceRange> from = sources_of(index);
                                          return from.empty() ? restored.rank : from[0].rank;
                                        },
                                    .read =
                                        [&](size_t index, const Tensor& memory) {
                                          return Assemble(own, all[index], sources_of(index),
                                                          memory);
                                        }})
                             .status());
  listeners_.Mark(Phase::kIdle);
  return restored;
}

}  // namespace muster::engine

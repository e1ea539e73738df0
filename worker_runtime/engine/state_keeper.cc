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

// Step, counters, metadata and plan as JSON, for the other ranks.
std::string Encode(const checkpoint::TrainingState& state) {
  const nlohmann::json head = {{"step", state.step},
                               {"counters", state.counters},
                               {"metadata", state.metadata},
                               {"plan", state.plan}};
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
    const int64_t begin = std::exchange(end, end + array.parameter->spec().shape.num_elements());
    places.push_back({begin, end});
  }
  return places;
}

// The place of the first element that this rank holds of a parameter, whose array lies at `place`.
int64_t OwnPlace(const Parameter& parameter, ElementRange place) {
  return place.begin + parameter.part().first_among_parts();
}

// Elements of one range that a rank has of an array.
Tensor ElementsIn(const ArrayPart& part, ElementRange wanted) {
  int64_t first = 0;  // of the range's elements, in `part`
  for (const ElementRange& range : part.ranges) {
    if (Overlap(range, wanted) == wanted) {
      return part.elements.Slice(first + wanted.begin - range.begin, {wanted.size()});
    }
    first += range.size();
  }
  return {};
}

// Every rank's ranges, by rank.
absl::StatusOr<std::vector<std::vector<ElementRange>>> GatherRanges(
    Communicator& world, absl::Span<const ElementRange> own) {
  std::vector<int64_t> ends;  // first and last, of each
  for (const ElementRange& range : own) {
    ends.push_back(range.begin);
    ends.push_back(range.end);
  }
  const std::vector<int64_t> size = {static_cast<int64_t>(ends.size())};
  std::vector<int64_t> sizes(world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(size), BufferOf(sizes)).Wait());
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  ends.resize(most);
  std::vector<int64_t> all(most * world.size());
  if (most > 0) {
    MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(ends), BufferOf(all)).Wait());
  }
  std::vector<std::vector<ElementRange>> ranges(world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    const int64_t* begin = all.data() + rank * most;
    for (int64_t i = 0; i < sizes[rank]; i += 2) ranges[rank].push_back({begin[i], begin[i + 1]});
  }
  return ranges;
}

}  // namespace

absl::StatusOr<Tensor> StateKeeper::WholeOf(const Parameter& parameter, Tensor part) const {
  if (!parameter.part().is_cut()) return part;
  Communicator& group = rig_.GroupAlong({plan::Dimension::kTensor});
  TensorPool host;
  const Tensor parts = host.Allocate(part.dtype(), {group.size(), part.num_elements()});
  MUSTER_RETURN_IF_ERROR(group.AllGather(BufferOfTensor(part), BufferOfTensor(parts)).Wait());
  const Tensor whole = host.Allocate(part.dtype(), parameter.spec().shape);
  const auto size = static_cast<int64_t>(SizeOf(part.dtype()));
  const auto* from = static_cast<const std::byte*>(parts.raw_data());
  for (int rank = 0; rank < group.size(); ++rank) {
    const ParameterPart of_rank(parameter.spec().shape.sizes(), parameter.spec().cut,
                                {.rank = rank, .size = group.size()});
    of_rank.ForEachRun(0, part.num_elements(), [&](const ElementRun& run) {
      std::copy_n(from + (rank * part.num_elements() + run.first) * size, run.count * size,
                  static_cast<std::byte*>(whole.raw_data()) + run.first_in_whole * size);
    });
  }
  return whole;
}

absl::StatusOr<std::string> StateKeeper::HashParameters() {
  Sha256 hash;
  for (const auto& parameter : rig_.store.parameters()) {
    parameter->Enter();                        // gathered, one unit at a time
    if (parameter->value().empty()) continue;  // of another stage
    MUSTER_ASSIGN_OR_RETURN(const Tensor held, rig_.Guard(OnHost(rig_.queue, parameter->value())));
    MUSTER_ASSIGN_OR_RETURN(const Tensor value, WholeOf(*parameter, held));
    hash.Add(parameter->name()).Add("\n");
    hash.Add(value.raw_data(), value.num_bytes());
  }
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  return hash.Finish();
}

absl::StatusOr<ArrayPart> StateKeeper::CopyOwn(const StateView& view, const StateArray& array,
                                               TensorPool& host) const {
  const DType dtype = rig_.program.types.master;
  ArrayPart part = {.whole = WholeArrayOf(*array.parameter, dtype),
                    .ranges = view.OwnRanges(*array.parameter)};
  int64_t size = 0;
  for (const ElementRange& range : part.ranges) size += range.size();
  if (size == 0) return part;
  part.elements = host.Allocate(dtype, {size});
  int64_t copied = 0;
  for (const ElementRange& range : part.ranges) {
    MUSTER_RETURN_IF_ERROR(view.CopyOwn(array.kind, *array.parameter, range,
                                        part.elements.Slice(copied, {range.size()})));
    copied += range.size();
  }
  return part;
}

absl::StatusOr<std::unique_ptr<StateCopy>> StateKeeper::Copy() {
  MUSTER_RETURN_IF_ERROR(progress_.CheckWhole());
  auto taken = std::make_unique<StateCopy>();
  taken->head = progress_.Save();
  const StateView view(rig_);
  TensorPool host;
  for (const StateArray& array : ModelArrays(rig_.store)) {
    MUSTER_ASSIGN_OR_RETURN(taken->model[array.name], CopyOwn(view, array, host));
  }
  for (const StateArray& array : OptimizerArrays(rig_.store, rig_.plan.update)) {
    MUSTER_ASSIGN_OR_RETURN(taken->optimizer[array.name], CopyOwn(view, array, host));
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
  std::vector<ElementRange> mine;
  const std::vector<StateArray> arrays = ModelArrays(rig_.store);
  for (size_t i = 0; own != nullptr && i < arrays.size(); ++i) {
    for (const ElementRange& range : own->model.at(arrays[i].name).ranges) {
      mine.push_back(range.MovedBy(OwnPlace(*arrays[i].parameter, places[i])));
    }
  }
  const std::vector<int64_t> step = {own == nullptr ? kNoState : own->head.step};
  std::vector<int64_t> steps(rig_.world.size());
  MUSTER_RETURN_IF_ERROR(rig_.world.AllGather(ConstBufferOf(step), BufferOf(steps)).Wait());
  MUSTER_ASSIGN_OR_RETURN(auto ranges, GatherRanges(rig_.world, mine));
  std::vector<StatePart> parts;
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    parts.push_back({steps[rank], std::move(ranges[rank])});
  }
  return parts;
}

// Each array in turn: whoever gives of it and whoever takes have all of that under way at once.
absl::Status StateKeeper::TakeArrays(const StateCopy* own, absl::Span<const ElementRange> places,
                                     absl::Span<const StatePart> parts, const StateSources& sources,
                                     int64_t updates) {
  const StateView view(rig_, updater_.RoundingAfter(updates));
  const CheckpointArrays arrays = AllArrays(rig_.store, rig_.plan.update);
  std::map<const Parameter*, ElementRange> place_of;
  for (size_t i = 0; i < places.size(); ++i) place_of[arrays.model[i].parameter] = places[i];
  for (const std::vector<StateArray>* alike : {&arrays.model, &arrays.optimizer}) {
    std::vector<ElementRange> mine;
    for (const auto& [kind, parameter, name] : *alike) {
      if (kind == StateKind::kSecondMoment) continue;  // as the first
      for (const ElementRange& range : view.WantedRanges(kind, *parameter)) {
        mine.push_back(range.MovedBy(OwnPlace(*parameter, place_of.at(parameter))));
      }
    }
    MUSTER_ASSIGN_OR_RETURN(const auto wanted, GatherRanges(rig_.world, mine));
    const std::vector<ElementTransfer> transfers = TransfersTo(wanted, parts, sources);
    for (const StateArray& array : *alike) {
      MUSTER_RETURN_IF_ERROR(
          rig_.Guard(TakeArray(own, view, array, place_of.at(array.parameter), transfers)));
      listeners_.Mark(Phase::kLoad);
    }
  }
  updater_.GoOnAfter(updates);
  return absl::OkStatus();
}

absl::Status StateKeeper::TakeArray(const StateCopy* own, const StateView& view,
                                    const StateArray& array, ElementRange place,
                                    absl::Span<const ElementTransfer> transfers) {
  const auto& [kind, parameter, name] = array;
  const int self = rig_.world.rank();
  const auto own_elements = [&, kind = kind, name = name](ElementRange range) {
    return ElementsIn((kind == StateKind::kValue ? own->model : own->optimizer).at(name), range);
  };
  struct Received {
    ElementRange range;
    Tensor elements;
  };
  std::vector<Received> received;  // that lies beside its place
  std::vector<Work> under_way;
  TensorPool pool;
  auto next = std::partition_point(
      transfers.begin(), transfers.end(),
      [&](const ElementTransfer& transfer) { return transfer.range.begin < place.begin; });
  for (; next != transfers.end() && next->range.begin < place.end; ++next) {
    const ElementRange range = next->range.MovedBy(-OwnPlace(*parameter, place));
    if (next->from == self && next->to == self) {
      received.push_back({range, own_elements(range)});
    } else if (next->from == self) {
      under_way.push_back(rig_.world.Send(BufferOfTensor(own_elements(range)), next->to));
    } else if (next->to == self) {
      const DType dtype = rig_.program.types.master;
      Tensor to = view.PlaceFor(kind, *parameter, range, dtype);
      if (to.empty()) {
        to = pool.Allocate(dtype, {range.size()});
        received.push_back({range, to});
      }
      under_way.push_back(rig_.world.Recv(BufferOfTensor(to), next->from));
    }
  }
  // All of them, for their memory goes with this call; an error ends those that are left.
  absl::Status ended;
  for (const Work& work : under_way) ended.Update(rig_.Guard(work.Wait()));
  MUSTER_RETURN_IF_ERROR(ended);
  for (const auto& [range, elements] : received) {
    MUSTER_RETURN_IF_ERROR(view.Take(kind, *parameter, range, elements));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::array<std::string, 2>> StateKeeper::HashHeld() const {
  std::array<Sha256, 2> hashes;
  for (const plan::Bucket& bucket : rig_.program.buckets) {
    const plan::BlockRange blocks = bucket.gathered ? bucket.owned : bucket.blocks;
    if (blocks.num_blocks() == 0) continue;
    MUSTER_ASSIGN_OR_RETURN(const Tensor values, OnHost(rig_.queue, rig_.held.Values(blocks)));
    // What lies between parameters may be anything.
    rig_.held.ForEachPiece(blocks, [&](const RankState::Piece& piece) {
      const Tensor part = values.Slice(piece.first_in_blocks, {piece.num_elements});
      hashes[bucket.gathered ? 1 : 0].Add(part.raw_data(), part.num_bytes());
    });
  }
  return std::array<std::string, 2>{hashes[0].Finish(), hashes[1].Finish()};
}

absl::Status StateKeeper::CheckHeldAlike(absl::string_view when) const {
  MUSTER_ASSIGN_OR_RETURN(const auto own, rig_.Guard(HashHeld()));
  std::vector<uint8_t> mine;
  for (const std::string& hash : own) mine.insert(mine.end(), hash.begin(), hash.end());
  std::vector<uint8_t> all(mine.size() * rig_.world.size());
  MUSTER_RETURN_IF_ERROR(rig_.world.AllGather(ConstBufferOf(mine), BufferOf(all)).Wait());
  const auto hash_of = [&](int rank, size_t which) {
    return absl::MakeConstSpan(all).subspan(rank * mine.size() + which * own[0].size(),
                                            own[0].size());
  };
  const plan::Mesh& mesh = rig_.set_up.mesh;
  const plan::Dimensions along[] = {plan::kReplicas, {plan::Dimension::kReplica}};
  for (int rank = 0; rank < rig_.world.size(); ++rank) {
    for (const size_t which : {0, 1}) {
      const int first = mesh.FirstOf(rank, along[which]);
      if (hash_of(rank, which) == hash_of(first, which)) continue;
      return absl::DataLossError(absl::StrCat(
          "the parameters of rank ", rank, " differ from those of rank ", first, " ", when,
          "; memory or network of one of them corrupts data, and training would go on "
          "differently"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Engine::Restored> StateKeeper::Restore(const StateCopy* own) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  MUSTER_RETURN_IF_ERROR(
      AllOrNone(rig_.world, own == nullptr ? absl::OkStatus() : CheckCopy(*own)));
  const std::vector<ElementRange> places = PlacesOf(ModelArrays(rig_.store));
  const int64_t num_elements = places.empty() ? 0 : places.back().end;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<StatePart> parts, GatherParts(own, places));
  MUSTER_ASSIGN_OR_RETURN(const StateSources sources, ChooseSources(parts, num_elements));
  const std::vector<int> ranks = sources.Ranks();
  const Engine::Restored restored = {.step = sources.step,
                                     .rank = ranks.empty() ? 0 : ranks[0],
                                     .num_ranks = static_cast<int>(ranks.size())};
  std::string head;
  if (rig_.world.rank() == restored.rank) head = Encode(own->head);
  MUSTER_ASSIGN_OR_RETURN(head, FromRank(rig_.world, restored.rank, std::move(head)));
  const std::string whose = WhoseState(restored);
  MUSTER_ASSIGN_OR_RETURN(const TrainingProgress read, progress_.Read(Decode(head), whose));
  progress_.is_torn = true;
  MUSTER_RETURN_IF_ERROR(TakeArrays(own, places, parts, sources, read.updates()));
  MUSTER_RETURN_IF_ERROR(CheckHeldAlike(absl::StrCat("after ", whose, " was loaded")));
  progress_ = read;
  listeners_.Mark(Phase::kIdle);
  return restored;
}

}  // namespace muster::engine

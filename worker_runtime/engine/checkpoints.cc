#include "worker_runtime/engine/checkpoints.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/agreement.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/host_copy.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster::engine {
namespace {

// What a rank reads at once into memory beside its own state.
constexpr int64_t kBufferBytes = 64 << 20;

std::string NameOf(const std::string& path) { return absl::StrCat("the checkpoint ", path); }

// What a rank makes of it that something is not there which rank 0 has. `code`: of that.
absl::Status OneDirectoryForAll(const absl::Status& own, absl::StatusCode code,
                                absl::string_view what) {
  if (!absl::IsNotFound(own)) return own;
  return absl::Status(
      code, absl::StrCat(what,
                         " is not there for this rank: every rank writes and reads its own part, "
                         "so the directory must be one for all nodes, as on a shared file system"));
}

// Elements that are read at once, as they are kept and as they are stored where the types differ;
// whole pieces of what has a digest in a checkpoint of f32. Of a cut parameter, elements between
// those of the part are read too.
int64_t MostElements(DType kept, DType stored, const Parameter& parameter) {
  constexpr int64_t kWhole = 1 << 20;
  size_t bytes = SizeOf(kept) + (stored == kept ? 0 : SizeOf(stored));
  if (!parameter.part().is_cut()) {
    return kBufferBytes / static_cast<int64_t>(bytes) / kWhole * kWhole;
  }
  bytes += SizeOf(stored) * static_cast<size_t>(parameter.store().tensor_ranks().size);
  const int64_t line = parameter.num_elements() / parameter.shape()[0];
  return std::max(kBufferBytes / static_cast<int64_t>(bytes) / line, int64_t{1}) * line;
}

// Runs of a part that are as long are read one by one; else all between them is.
constexpr int64_t kLongRun = 1 << 18;

// Memory of the host that is taken when it is needed.
class HostBuffer {
 public:
  explicit HostBuffer(DType dtype) : dtype_(dtype) {}
  Tensor Of(int64_t elements) {
    if (memory_.num_elements() < elements) memory_ = pool_.Allocate(dtype_, {elements});
    return memory_.Slice(0, {elements});
  }

 private:
  const DType dtype_;
  TensorPool pool_;
  Tensor memory_;
};

absl::StatusOr<checkpoint::NewCheckpoint> Begin(const std::string& directory,
                                                const checkpoint::TrainingState& head) {
  if (directory.empty()) {
    return absl::InvalidArgumentError("the directory to save a checkpoint in has an empty name");
  }
  return checkpoint::NewCheckpoint::Begin(
      absl::StrCat(directory, "/", checkpoint::NameOfStep(head.step)), head);
}

}  // namespace

// --- out ----------------------------------------------------------------------------------------

checkpoint::TrainingState Checkpoints::Head(
    const std::map<std::string, std::string>& metadata) const {
  checkpoint::TrainingState head = progress_.Save();
  head.metadata = metadata;
  head.written_by = {fence_.instance, fence_.round};
  for (const auto& [key, value] : Describe(rig_.plan)) head.plan[key] = value;
  return head;
}

absl::Status Checkpoints::Save(const std::string& directory,
                               const std::map<std::string, std::string>& metadata) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kSave);
  const absl::Status saved = Write(directory, Head(metadata));
  listeners_.Mark(Phase::kIdle);
  return saved;
}

absl::Status Checkpoints::Write(const std::string& directory,
                                const checkpoint::TrainingState& head) {
  MUSTER_RETURN_IF_ERROR(AllOrNone(rig_.world, progress_.CheckWhole()));
  std::optional<checkpoint::NewCheckpoint> made;  // on rank 0
  absl::StatusOr<std::string> hidden = std::string();
  if (rig_.world.rank() == 0) {
    absl::StatusOr<checkpoint::NewCheckpoint> begun = Begin(directory, head);
    if (!begun.ok()) hidden = begun.status();
    if (begun.ok()) hidden = made.emplace(*std::move(begun)).hidden();
  }
  MUSTER_ASSIGN_OR_RETURN(hidden, FromRankZero(rig_.world, std::move(hidden)));
  const CheckpointArrays arrays = AllArrays(rig_.store, rig_.plan.update);
  absl::StatusOr<checkpoint::WrittenFile> own = WriteOwn(*hidden, arrays);
  MUSTER_RETURN_IF_ERROR(device_);
  absl::Status written = own.status();
  if (!made) {
    written = OneDirectoryForAll(written, absl::StatusCode::kUnavailable,
                                 absl::StrCat(*hidden, ", which rank 0 has made,"));
  }
  MUSTER_RETURN_IF_ERROR(AllOrNone(rig_.world, written, absl::InfiniteDuration()));
  const absl::StatusOr<std::vector<checkpoint::WrittenFile>> files = Gather(*std::move(own));
  if (!made) MUSTER_RETURN_IF_ERROR(files.status());
  absl::StatusOr<std::string> published = std::string();
  if (made) {
    const absl::Status status = files.ok() ? Publish(*made, head, arrays, *files) : files.status();
    if (status.ok()) {
      checkpoint::RemoveLeftovers(directory);
      if (keep_ > 0) {
        checkpoint::RemoveSuperseded(directory, head.step, keep_, head.written_by);
      }
    } else {
      published = status;
    }
    made.reset();  // before the others hear of an error, and perhaps save again
  }
  return FromRankZero(rig_.world, std::move(published)).status();
}

absl::Status Checkpoints::Publish(checkpoint::NewCheckpoint& made,
                                  const checkpoint::TrainingState& head,
                                  const CheckpointArrays& arrays,
                                  const std::vector<checkpoint::WrittenFile>& files) {
  MUSTER_ASSIGN_OR_RETURN(
      const checkpoint::Manifest manifest,
      checkpoint::ManifestOf(head, ToWrite(arrays, rig_.program.types.master), files));
  return made.Publish(manifest, [this] {
    return fence_.commit ? fence_.commit(progress_.step) : absl::OkStatus();
  });
}

absl::StatusOr<checkpoint::WrittenFile> Checkpoints::WriteOwn(const std::string& hidden,
                                                              const CheckpointArrays& arrays) {
  const StateView view(rig_);
  const plan::Mesh& mesh = rig_.set_up.mesh;
  std::vector<checkpoint::Slice> share;
  for (const bool is_cut : {false, true}) {
    std::vector<checkpoint::Slice> owned;
    plan::Dimensions owners = {};
    for (size_t i = 0; i < arrays.size(); ++i) {
      const Parameter& parameter = *arrays[i].parameter;
      if (parameter.part().is_cut() != is_cut) continue;
      owners = StateView::OwnersOf(parameter);
      for (const ElementRange& range : view.OwnRanges(parameter)) {
        owned.push_back({i, parameter.part().first_among_parts() + range.begin, range.size()});
      }
    }
    const std::vector<checkpoint::Slice> own =
        checkpoint::ShareOf(owned, mesh.IndexOf(rig_.world.rank(), owners), mesh.SizeOf(owners));
    share.insert(share.end(), own.begin(), own.end());
  }
  if (share.empty()) return checkpoint::WrittenFile();
  const DType dtype = rig_.program.types.master;
  HostBuffer buffer(dtype);
  const auto bytes_of = [&](size_t array, int64_t first,
                            int64_t count) -> absl::StatusOr<absl::string_view> {
    const auto& [kind, parameter, name] = arrays[array];
    const ElementRange range =
        ElementRange{first, first + count}.MovedBy(-parameter->part().first_among_parts());
    Tensor elements = view.OwnMemory(kind, *parameter, range, dtype);
    if (elements.empty()) {
      elements = buffer.Of(count);
      MUSTER_RETURN_IF_ERROR(OfDevice(view.CopyOwn(kind, *parameter, range, elements)));
    }
    return absl::string_view(static_cast<const char*>(elements.raw_data()),
                             static_cast<size_t>(elements.num_bytes()));
  };
  return checkpoint::WriteSlices(hidden, checkpoint::NameOfSlices(rig_.world.rank()),
                                 ToWrite(arrays, dtype), share, bytes_of,
                                 [this] { listeners_.Mark(Phase::kSave); });
}

absl::StatusOr<std::vector<checkpoint::WrittenFile>> Checkpoints::Gather(
    checkpoint::WrittenFile own) {
  Communicator& world = rig_.world;
  std::vector<checkpoint::WrittenFile> files;
  if (world.rank() != 0) {
    const std::string text = own.Encode();
    const std::vector<uint8_t> bytes(text.begin(), text.end());
    const std::vector<int64_t> size = {static_cast<int64_t>(bytes.size())};
    MUSTER_RETURN_IF_ERROR(world.Send(ConstBufferOf(size), 0).Wait());
    MUSTER_RETURN_IF_ERROR(world.Send(ConstBufferOf(bytes), 0).Wait());
    return files;
  }
  if (!own.name.empty()) files.push_back(std::move(own));
  absl::Status told;  // the first error in what ranks have told, once all have
  for (int rank = 1; rank < world.size(); ++rank) {
    std::vector<int64_t> size(1);
    MUSTER_RETURN_IF_ERROR(world.Recv(BufferOf(size), rank).Wait());
    std::vector<uint8_t> bytes(size[0]);
    MUSTER_RETURN_IF_ERROR(world.Recv(BufferOf(bytes), rank).Wait());
    const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    absl::StatusOr<checkpoint::WrittenFile> file = checkpoint::WrittenFile::Decode(text);
    told.Update(file.status());
    if (file.ok() && !file->name.empty()) files.push_back(*std::move(file));
  }
  if (!told.ok()) return told;
  return files;
}

// --- in -----------------------------------------------------------------------------------------

absl::StatusOr<Checkpoints::Found> Checkpoints::ReadNewest(const std::string& directory,
                                                           const checkpoint::Fits& fits,
                                                           ReadState read) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  const bool is_first = rig_.world.rank() == 0;
  absl::StatusOr<checkpoint::CheckpointSearch> search = absl::UnknownError("not on this rank");
  if (is_first) search = checkpoint::CheckpointSearch::In(directory);
  for (;;) {
    absl::StatusOr<checkpoint::Checkpoint> opened = absl::UnknownError("not on this rank");
    if (is_first) opened = search.ok() ? search->Next(fits) : search.status();
    absl::StatusOr<std::string> told = std::string();
    if (is_first && !opened.ok()) told = opened.status();
    if (is_first && opened.ok()) told = absl::StrCat(opened->sha256(), opened->path());
    MUSTER_ASSIGN_OR_RETURN(told, FromRankZero(rig_.world, std::move(told)));
    const std::string sha256 = told->substr(0, 64);
    const std::string path = told->substr(64);
    if (!is_first) opened = checkpoint::Checkpoint::Open(path);
    absl::Status same = OneDirectoryForAll(opened.status(), absl::StatusCode::kInvalidArgument,
                                           absl::StrCat(path, ", which rank 0 has found,"));
    if (opened.ok() && opened->sha256() != sha256) {
      same = absl::UnavailableError(
          absl::StrCat(path,
                       " is another checkpoint for this rank than for rank 0: either it was "
                       "replaced meanwhile, or they see different directories, and it must be one "
                       "for all nodes"));
    }
    MUSTER_RETURN_IF_ERROR(AllOrNone(rig_.world, same, absl::InfiniteDuration()));
    progress_.is_torn = true;
    const absl::Status own = read(*opened);
    MUSTER_RETURN_IF_ERROR(device_);
    const absl::Status status = AllOrNone(rig_.world, own, absl::InfiniteDuration());
    if (status.ok()) {
      Found found = {opened->state()};
      if (is_first) found.passed_over = search->passed_over();
      return found;
    }
    if (!IsOwnFailure(status) || !absl::IsInvalidArgument(status)) return status;
    if (is_first) search->PassOver(status.message());
  }
}

namespace {

// Elements of what this rank holds of an array, which lies whole or in any parts.
absl::Status ReadPart(const checkpoint::Checkpoint& opened, const ArrayTable& stored,
                      const StateArray& array, ElementRange range, const Tensor& to) {
  const ParameterPart& part = array.parameter->part();
  if (!part.is_cut()) return opened.Read(stored, array.name, range.begin, BufferOfTensor(to));
  std::vector<ElementRun> runs;
  part.ForEachRun(range.begin, range.size(), [&](const ElementRun& run) { runs.push_back(run); });
  if (range.size() >= kLongRun * static_cast<int64_t>(runs.size())) {
    for (const ElementRun& run : runs) {
      const Tensor elements = to.Slice(run.first - range.begin, {run.count});
      MUSTER_RETURN_IF_ERROR(
          opened.Read(stored, array.name, run.first_in_whole, BufferOfTensor(elements)));
    }
    return absl::OkStatus();
  }
  const int64_t first = runs.front().first_in_whole;
  TensorPool pool;
  const Tensor between =
      pool.Allocate(to.dtype(), {runs.back().first_in_whole + runs.back().count - first});
  MUSTER_RETURN_IF_ERROR(opened.Read(stored, array.name, first, BufferOfTensor(between)));
  for (const ElementRun& run : runs) {
    const Tensor from = between.Slice(run.first_in_whole - first, {run.count});
    const Tensor elements = to.Slice(run.first - range.begin, {run.count});
    std::memcpy(elements.raw_data(), from.raw_data(), from.num_bytes());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Checkpoints::ReadArrays(const checkpoint::Checkpoint& opened,
                                     const CheckpointArrays& arrays,
                                     std::optional<ValueRounding> rounding) {
  const StateView view(rig_, rounding);
  const DType dtype = rig_.program.types.master;
  HostBuffer buffer(dtype);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const auto& [kind, parameter, name] = arrays[i];
    const checkpoint::Manifest& manifest = opened.manifest();
    const auto& stored = kind == StateKind::kValue ? manifest.model : manifest.optimizer;
    const DType stored_type = stored.at(name).dtype;
    const bool is_narrow = stored_type != dtype;
    HostBuffer narrow(stored_type);
    for (const ElementRange& wanted : view.WantedRanges(kind, *parameter)) {
      ElementRange range = wanted;
      for (; range.begin < wanted.end; range.begin = range.end) {
        range.end =
            std::min(wanted.end, range.begin + MostElements(dtype, stored_type, *parameter));
        const Tensor place = view.PlaceFor(kind, *parameter, range, dtype);
        const Tensor elements = place.empty() ? buffer.Of(range.size()) : place;
        const Tensor read = is_narrow ? narrow.Of(range.size()) : elements;
        MUSTER_RETURN_IF_ERROR(ReadPart(opened, stored, arrays[i], range, read));
        if (is_narrow) MUSTER_RETURN_IF_ERROR(CopyAcross(rig_.queue, read, elements));
        if (place.empty()) {
          MUSTER_RETURN_IF_ERROR(OfDevice(view.Take(kind, *parameter, range, elements)));
        }
        listeners_.Mark(Phase::kLoad);
      }
    }
  }
  return OfDevice(WaitForQueue(rig_.queue, rig_.held.all_squares()));
}

Engine::Loaded Checkpoints::LoadedOf(Found found) {
  return {.metadata = std::move(found.state.metadata),
          .plan = std::move(found.state.plan),
          .model_id = std::move(found.state.model_id),
          .passed_over = std::move(found.passed_over)};
}

absl::StatusOr<Engine::Loaded> Checkpoints::Load(const std::string& directory) {
  const CheckpointArrays arrays = AllArrays(rig_.store, rig_.plan.update);
  const auto fits = [this](const checkpoint::Checkpoint& opened) {
    const std::string name = NameOf(opened.path());
    MUSTER_RETURN_IF_ERROR(progress_.Read(opened.state(), name).status());
    return CheckSameModel(
        rig_.store, rig_.program.types.master, rig_.plan.update,
        {opened.manifest().model, opened.manifest().optimizer, name, /*is_file=*/true});
  };
  const auto read = [&](const checkpoint::Checkpoint& opened) -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(const TrainingProgress next,
                            progress_.Read(opened.state(), NameOf(opened.path())));
    return ReadArrays(opened, arrays, updater_.RoundingAfter(next.updates()));
  };
  MUSTER_ASSIGN_OR_RETURN(Found found, ReadNewest(directory, fits, read));
  MUSTER_ASSIGN_OR_RETURN(const TrainingProgress next,
                          progress_.Read(found.state, NameOf(directory)));
  updater_.GoOnAfter(next.updates());
  progress_ = next;
  listeners_.Mark(Phase::kIdle);
  return LoadedOf(std::move(found));
}

absl::StatusOr<Engine::Loaded> Checkpoints::LoadBase(const std::string& directory) {
  const CheckpointArrays arrays = {.model = BaseArrays(rig_.store)};
  const auto fits = [this](const checkpoint::Checkpoint& opened) {
    return CheckIsBase(rig_.store, rig_.program.types.master, opened.manifest().model,
                       NameOf(opened.path()));
  };
  const auto read = [&](const checkpoint::Checkpoint& opened) {
    return ReadArrays(opened, arrays, std::nullopt);
  };
  const bool was_torn = progress_.is_torn;
  MUSTER_ASSIGN_OR_RETURN(Found found, ReadNewest(directory, fits, read));
  progress_.is_torn = was_torn;
  listeners_.Mark(Phase::kIdle);
  return LoadedOf(std::move(found));
}

absl::Status Checkpoints::LoadModel(const ModelFiles& files) {
  MUSTER_RETURN_IF_ERROR(alone_.Leave());
  listeners_.Mark(Phase::kLoad);
  CheckpointArrays arrays = {.model = BaseArrays(rig_.store)};
  if (arrays.model.empty()) arrays.model = ModelArrays(rig_.store);
  MUSTER_ASSIGN_OR_RETURN(const std::string id, FromRankZero(rig_.world, files.id()));
  absl::Status fits = CheckHolds(arrays.model, files.opened().manifest().model, files.directory());
  if (rig_.program.types.master == DType::kF64) {
    fits = absl::UnimplementedError("parameters of f64 take no weights from files of models");
  }
  if (id != files.id()) {
    fits = absl::InvalidArgumentError(
        absl::StrCat(files.directory(), " is another model for this rank than for rank 0"));
  }
  MUSTER_RETURN_IF_ERROR(AllOrNone(rig_.world, fits));
  const bool was_torn = progress_.is_torn;
  progress_.is_torn = true;
  const absl::Status own = ReadArrays(files.opened(), arrays, std::nullopt);
  MUSTER_RETURN_IF_ERROR(device_);
  MUSTER_RETURN_IF_ERROR(AllOrNone(rig_.world, own, absl::InfiniteDuration()));
  progress_.is_torn = was_torn;
  listeners_.Mark(Phase::kIdle);
  return absl::OkStatus();
}

}  // namespace muster::engine

#include "worker_runtime/checkpoint/export.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/slice_file.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace muster::checkpoint {
namespace {

// What is wrong with the place is not damage of the source.
absl::Status OfPlace(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::FailedPreconditionError(status.message()) : status;
}

// People put files of their own beside those of an export.
absl::Status CheckHoldsNothingElse(const std::string& place) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(place);
  if (!names.ok()) return absl::OkStatus();  // NewCheckpoint::Begin says what is wrong, if anything
  for (const std::string& name : *names) {
    if (IsFileOfCheckpoint(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat("cannot save a checkpoint as ", place,
                                                      ": it is not a checkpoint alone, since "
                                                      "it holds ",
                                                      name,
                                                      ", too. Move that away, or save elsewhere"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportWhole(const Checkpoint& from, const std::string& place,
                         const Progress& progress) {
  TrainingState state = from.state();
  state.written_by = {};  // no round of a job publishes this: it may replace what a later one wrote
  MUSTER_RETURN_IF_ERROR(CheckHoldsNothingElse(place));
  absl::StatusOr<NewCheckpoint> made = NewCheckpoint::Begin(place, state);
  if (!made.ok()) return OfPlace(made.status());
  std::vector<ArrayToWrite> arrays;
  const auto arrays_of = [&from](bool is_of_model) -> const SlicedArrays& {
    return is_of_model ? from.manifest().model : from.manifest().optimizer;
  };
  std::vector<char> block(kDigestBlockBytes);
  absl::Status damage;  // of `from`
  const auto bytes_of = [&](size_t index, int64_t first,
                            int64_t count) -> absl::StatusOr<absl::string_view> {
    const ArrayToWrite& array = arrays[index];
    damage = from.Read(arrays_of(array.is_of_model), array.name, first,
                       {block.data(), count, array.dtype});
    MUSTER_RETURN_IF_ERROR(damage);
    return absl::string_view(block.data(), static_cast<size_t>(count) * SizeOf(array.dtype));
  };
  std::vector<WrittenFile> files;
  for (const bool is_of_model : {true, false}) {
    std::vector<Slice> whole;
    for (const auto& [name, array] : arrays_of(is_of_model)) {
      whole.push_back({.array = arrays.size(), .elements = array.num_elements()});
      arrays.push_back({name, array.dtype, array.shape, is_of_model});
    }
    absl::StatusOr<WrittenFile> file = WriteSlices(
        made->hidden(), is_of_model ? kModel : kOptimizer, arrays, whole, bytes_of, progress);
    MUSTER_RETURN_IF_ERROR(damage);
    if (!file.ok()) return OfPlace(file.status());
    files.push_back(*std::move(file));
  }
  MUSTER_ASSIGN_OR_RETURN(const Manifest manifest, ManifestOf(state, arrays, files));
  MUSTER_RETURN_IF_ERROR(OfPlace(made->Publish(manifest)));
  RemoveLeftovers(ParentOf(made->place()));
  return absl::OkStatus();
}

}  // namespace muster::checkpoint

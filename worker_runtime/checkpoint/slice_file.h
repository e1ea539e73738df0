// Slices of arrays in a file of safetensors: each process writes its own, and one process makes the
// manifest of what all have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/dtype.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/manifest.h"

namespace muster::checkpoint {

// An array of a checkpoint, which lies nowhere whole.
struct ArrayToWrite {
  std::string name;  // of the optimizer's, with its prefix: first_moment.<parameter>
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  bool is_of_model = true;
  std::optional<StoredParts> parts = {};
};

// Consecutive elements of one of them, as it is stored: see SlicedArray::parts.
struct Slice {
  size_t array = 0;
  int64_t first = 0;
  int64_t elements = 0;
};

// The part of `all`, as one sequence, that falls to `writer` of `num_writers` who all have them.
// Threads: pure.
std::vector<Slice> ShareOf(absl::Span<const Slice> all, int writer, int num_writers);

struct WrittenSlice {
  Slice slice;
  int64_t offset = 0;  // of the file
};

// What lies in a file.
struct WrittenFile {
  std::string name;
  int64_t bytes = 0;
  std::vector<WrittenSlice> slices;
  std::string digests;  // kDigestBytes each, slice by slice

  // The text is for another process of the same program.
  std::string Encode() const;
  static absl::StatusOr<WrittenFile> Decode(absl::string_view text);
};

// The bytes of `count` elements of an array from `first` on. They stay until the next call.
using SliceBytes =
    std::function<absl::StatusOr<absl::string_view>(size_t array, int64_t first, int64_t count)>;

// Writes them as `directory`/`name` and syncs it; a slice that is a whole array has its name and
// shape, another is flat: "<array>[<first>:<end>]"; "other/" tells a second one of a name.
// `bytes_of` is asked for kDigestBlockBytes at most, in the order of the file. `progress` is called
// after each of these.
//
// Errors: WriteSafetensors'; `bytes_of`'s.
// Threads: safe.
absl::StatusOr<WrittenFile> WriteSlices(const std::string& directory, const std::string& name,
                                        absl::Span<const ArrayToWrite> arrays,
                                        absl::Span<const Slice> slices, const SliceBytes& bytes_of,
                                        const Progress& progress = nullptr);

// What is in `files` together. An empty `state.model_id` gets a value.
//
// Errors: kInternal: the slices of an array are not each of its elements once, or are not of these
//         arrays.
// Threads: pure.
absl::StatusOr<Manifest> ManifestOf(TrainingState state, absl::Span<const ArrayToWrite> arrays,
                                    absl::Span<const WrittenFile> files);

}  // namespace muster::checkpoint

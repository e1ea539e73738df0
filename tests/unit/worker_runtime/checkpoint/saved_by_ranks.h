// A checkpoint as several ranks write it, here by one process: each in its turn.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/slice_file.h"

namespace muster::checkpoint {

// An array with all of its bytes.
struct WholeArray {
  ArrayToWrite array;
  std::string bytes;

  int64_t num_elements() const;
};
using WholeArrays = std::vector<WholeArray>;

// `first`, ... of f32.
WholeArray Floats(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<float>& values);
WholeArray RandomBits(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                      std::mt19937& random);

std::vector<ArrayToWrite> ToWrite(const WholeArrays& arrays);
// Answers from `arrays`, which outlives it.
SliceBytes BytesIn(const WholeArrays& arrays);

using SlicesByRank = std::vector<std::vector<Slice>>;
// Each array in as many parts as there are ranks, of one size as far as that goes.
SlicesByRank EvenSlices(const WholeArrays& arrays, int world_size);
// Each array in up to `parts_max` parts that end anywhere, each of any rank.
SlicesByRank RandomSlices(const WholeArrays& arrays, int world_size, int parts_max,
                          std::mt19937& random);

struct SavedState {
  TrainingState state;
  WholeArrays arrays;
  SlicesByRank slices;
};

// What rank `rank` does of a save: its file in `hidden`.
absl::StatusOr<WrittenFile> WriteAsRank(const std::string& hidden, int rank,
                                        const SavedState& saved);
// The save of all ranks, as `directory`/step_<number>. Returns that path.
absl::StatusOr<std::string> SaveByRanks(const std::string& directory, const SavedState& saved,
                                        const Commit& commit = nullptr);

// Parameters "w" and moments "first_moment.w" and "second_moment.w" of shape [2, 3] that are all
// `value`, by two ranks; metadata "value" says it too.
SavedState StateOf(int64_t step, float value);
inline absl::StatusOr<std::string> Save(const std::string& directory, int64_t step,
                                        float value = 1.0f) {
  return SaveByRanks(directory, StateOf(step, value));
}

// `count` elements from `first` on, as bytes.
absl::StatusOr<std::string> ReadRange(const Checkpoint& checkpoint, const SlicedArrays& arrays,
                                      const std::string& name, int64_t first, int64_t count);
absl::StatusOr<std::string> ReadWhole(const Checkpoint& checkpoint, const SlicedArrays& arrays,
                                      const std::string& name);
// The value of a checkpoint of StateOf; an error if an element of it has another one.
absl::StatusOr<float> ValueIn(const Checkpoint& checkpoint);
absl::StatusOr<float> ValueIn(const std::string& path);

// The path of what a search in `directory` gives first.
absl::StatusOr<std::string> NewestIn(const std::string& directory);

// Where a byte of an array lies: in the file `path`, at `offset`.
struct PlaceOfByte {
  std::string path;
  int64_t offset = 0;
};
PlaceOfByte PlaceOf(const Checkpoint& checkpoint, const SlicedArray& array, int64_t element);
void FlipByte(const PlaceOfByte& place);
void FlipLastByte(const std::string& file);

// Reads every array in its digests' blocks. Errors: Checkpoint::Read's.
absl::Status ReadAll(const Checkpoint& checkpoint);

}  // namespace muster::checkpoint

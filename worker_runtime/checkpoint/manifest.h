// What a checkpoint holds and where: values to the text of training.json and back. Touches no file.
//
// Threads: pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"
#include "muster/tensor_ranks.h"

namespace muster::checkpoint {

// A round of a job; later ones are greater. Without an agent: instance 0.
struct JobRound {
  int64_t instance = 0;
  int64_t round = -1;
  friend auto operator<=>(const JobRound&, const JobRound&) = default;
};

struct TrainingState {
  int64_t step = 0;
  std::map<std::string, std::string> plan;      // what it was trained with; for people
  std::map<std::string, std::string> metadata;  // the caller's
  std::map<std::string, std::string> counters;  // the engine's, beside its arrays
  JobRound written_by;
  // 64 hex digits of the model's values as they were first written, which an export keeps. The same
  // values that other ranks write have others.
  std::string model_id;
};

// Consecutive elements of an array, in one file.
struct Piece {
  int64_t file = 0;  // of Manifest::files
  int64_t offset = 0;
  int64_t elements = 0;
  int64_t first_digest = 0;  // of Manifest::digests
};

// How an array lies that tensor ranks have cut: the parts of all of them, one after the other.
struct StoredParts {
  ParameterCut cut;
  int64_t count = 0;
  friend bool operator==(const StoredParts&, const StoredParts&) = default;
};

struct SlicedArray {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;         // in the order of the elements, all of them
  std::optional<StoredParts> parts;  // nothing: elements are in the order of the shape
  // A matrix whose only piece has its columns one after the other, as other programs write some;
  // it has no digest.
  bool is_transposed = false;

  int64_t num_elements() const;
};
using SlicedArrays = std::map<std::string, SlicedArray>;

// A SHA-256, of every `block_bytes` of a piece from its first byte on, lies beside the manifest in
// a file of its own: pieces in the order of arrays, the model's first.
inline constexpr int64_t kDigestBytes = 32;
inline constexpr int64_t kDigestBlockBytes = 4 << 20;

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
};

struct Manifest {
  TrainingState state;
  std::vector<ManifestFile> files;
  SlicedArrays model;
  SlicedArrays optimizer;
  int64_t block_bytes = kDigestBlockBytes;
  // kDigestBytes each. None, of a checkpoint of before there were any: what is read is not checked.
  std::string digests;

  int64_t NumDigests() const { return static_cast<int64_t>(digests.size()) / kDigestBytes; }
};

// How many digests a piece of so many bytes has.
int64_t NumBlocks(int64_t bytes, int64_t block_bytes);

// Errors: kInvalidArgument: a negative step; a key or value that is not UTF-8.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// The manifest without its digests, and the SHA-256 that their file has: 64 hex digits.
struct ManifestText {
  // It is of the form that manifest_of_whole.h reads; then nothing else here is filled.
  bool is_of_whole = false;
  Manifest manifest;
  std::string digests_sha256;
  int64_t num_digests = 0;
};

// Safe for any bytes. Every piece lies within its file, beside all others, and the pieces of an
// array are as many elements as its shape says.
//
// Errors: kInvalidArgument: not what FormatManifest writes, or it lies (names the array and the
//         file); kUnimplemented: it is of a newer format.
absl::StatusOr<ManifestText> ParseManifest(absl::string_view text);

// The writer of a manifest of either form. Errors: ParseManifest's.
absl::StatusOr<JobRound> WriterOfManifest(absl::string_view text);

}  // namespace muster::checkpoint

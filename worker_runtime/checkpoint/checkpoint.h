// A checkpoint that is read: any range of any array, by any number of processes at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/buffer.h"
#include "proto/io/unique_fd.h"
#include "worker_runtime/checkpoint/manifest.h"

namespace muster::checkpoint {

// Threads: thread-compatible.
class Checkpoint {
 public:
  // Reads the manifest of the checkpoint that is the directory `path`, and no array.
  //
  // Errors: kNotFound, and FileError's others; kInvalidArgument: the manifest is damaged, or a file
  //         is missing that it needs; kUnimplemented: it is of a newer format.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  // Files of another program in the directory `path`, as `manifest` describes them. Errors:
  // FileError's.
  static absl::StatusOr<Checkpoint> OfFiles(const std::string& path, Manifest manifest);

  const std::string& path() const { return path_; }
  const TrainingState& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }
  // 64 hex digits, by which ranks see that they have opened the same one; of another program's
  // files none.
  const std::string& sha256() const { return sha256_; }

  // Whether its files are there with as many bytes as were written.
  //
  // Errors: kInvalidArgument: names what is missing or cut off; kUnavailable: it was replaced since
  //         Open.
  absl::Status CheckFiles() const;

  // Elements of an array of `arrays`, the model's or the optimizer's, from `first` on. A block is
  // read whole and compared with its digest the first time that anything of it is wanted; this
  // takes at most kDigestBlockBytes beside `out`.
  //
  // Errors: kInvalidArgument: the bytes are others than were written, or the file is cut off (names
  //         file and array); kUnavailable: it was replaced since Open; the file system's.
  absl::Status Read(const SlicedArrays& arrays, const std::string& name, int64_t first,
                    Buffer out) const;

 private:
  struct Block;  // of one digest, and what is wanted of it

  Checkpoint() = default;
  absl::StatusOr<int> FileAt(int64_t index) const;
  // Elements as they are stored.
  absl::Status ReadStored(const SlicedArray& array, int64_t first, int64_t count, char* out,
                          const std::string& name) const;
  absl::Status ReadParts(const SlicedArray& array, int64_t first, int64_t count, char* out,
                         const std::string& name) const;
  absl::Status ReadPiece(const Piece& piece, int64_t size, int64_t first, int64_t count, char* out,
                         const std::string& name) const;
  absl::Status ReadBlock(const Block& block, const std::string& name) const;
  struct Rectangle;  // of a matrix
  absl::Status ReadTransposed(const SlicedArray& matrix, int64_t first, int64_t count,
                              char* out) const;
  absl::Status ReadColumns(const SlicedArray& matrix, const Rectangle& wanted, char* out) const;
  std::string PathOf(int64_t file) const;

  std::string path_;
  std::string sha256_;
  Manifest manifest_;
  UniqueFd directory_;                    // all files by way of it: they are of one checkpoint
  mutable std::vector<UniqueFd> files_;   // of the manifest's, those that were read from
  mutable std::vector<bool> is_checked_;  // by digest
};

// Whether a checkpoint is what the caller can take; its error is no damage, and is returned.
using Fits = std::function<absl::Status(const Checkpoint& checkpoint)>;

// The checkpoint that a user means by a directory: itself if it is one, else that with the highest
// step in it which is whole.
//
//   MUSTER_ASSIGN_OR_RETURN(CheckpointSearch search, CheckpointSearch::In(directory));
//   for (;;) {
//     MUSTER_ASSIGN_OR_RETURN(const Checkpoint next, search.Next(fits));
//     const absl::Status read = ...;
//     if (!absl::IsInvalidArgument(read)) return read;  // well, or a disk that does not answer
//     search.PassOver(read.message());
//   }
//
// Threads: thread-compatible.
class CheckpointSearch {
 public:
  // Errors: kNotFound: the directory is empty or absent (says what was looked for); what a killed
  //         writer left hidden does not count. kInvalidArgument: it holds something, but no
  //         checkpoint nor part of one.
  static absl::StatusOr<CheckpointSearch> In(const std::string& directory);

  // The newest that has not been given yet, whose manifest can be read and whose files are there.
  //
  // Errors: kInvalidArgument: there is none (says what is wrong with each); those of `fits`;
  //         Checkpoint::Open's.
  absl::StatusOr<Checkpoint> Next(const Fits& fits = nullptr);
  // What was given is damaged after all.
  void PassOver(absl::string_view why) { passed_over_.emplace_back(why); }
  // A sentence for each newer one that is not whole.
  const std::vector<std::string>& passed_over() const { return passed_over_; }

 private:
  explicit CheckpointSearch(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  std::vector<std::string> paths_;  // newest first
  size_t next_ = 0;
  std::vector<std::string> passed_over_;
};

}  // namespace muster::checkpoint

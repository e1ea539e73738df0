// A checkpoint that one process writes and reads: the whole training state.
//
//   DIR/step_00000100/model.safetensors       parameters by name
//                     optimizer.safetensors   moments: first_moment.<name>, …
//                     training.json           format, step, plan, counters, caller's metadata,
//                                             checksums of the arrays and of itself
//
// Written as DIR/.step_00000100.<writer>.<random>, synced, then renamed: a directory without a
// leading dot is complete. A checkpoint of the same step is replaced in one step (renameat2); where
// the file system cannot, the old one is .step_00000100.replaced.<random> for a moment, and found
// there if the writer is killed in it. Hidden directories of killed writers are removed by the next
// save on that machine, in that container, else by the first a day later: a younger one may belong
// to a writer on another node.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/array_checksums.h"
#include "worker_runtime/checkpoint/safetensors.h"

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
  ArrayChecksums model_sha256;  // filled in by WriteWholeCheckpoint; empty in older checkpoints
  ArrayChecksums optimizer_sha256;
};

// Asked when all files are written, before the checkpoint takes its place.
using Commit = std::function<absl::Status()>;

// Creates `directory` if needed. Returns the path of the checkpoint. `progress` is called after
// each array, `fill` before it with its place among the parameters and then the moments
// (FillArray). What a later round of the job has written is never replaced.
//
// Errors: as WriteSafetensors; what `commit` says; kFailedPrecondition: a later round has written
// this step; kInvalidArgument: `directory` is a file, the step is negative, or
//         what has the checkpoint's name is none, nor part of one. On an error what was written of
//         this checkpoint is removed, and earlier ones are as they were.
// Threads: safe, also between processes; of two writers of one step the last to end wins.
absl::StatusOr<std::string> WriteWholeCheckpoint(const std::string& directory,
                                                 const TrainingState& state,
                                                 absl::Span<const NamedArray> parameters,
                                                 absl::Span<const NamedArray> moments,
                                                 const Progress& progress = nullptr,
                                                 const Commit& commit = nullptr,
                                                 const FillArray& fill = nullptr);

struct WholeCheckpoint {
  TrainingState state;
  SafetensorsFile model;
  SafetensorsFile optimizer;
};
// Errors: SafetensorsFile::Open's; kInvalidArgument: training.json is damaged, an array is missing,
//         or the files are of different steps; kUnimplemented: it is of a newer format.
absl::StatusOr<WholeCheckpoint> OpenWholeCheckpoint(const std::string& path);

// Reads all arrays once and compares them with their checksums. Errors: CheckArrays'.
absl::Status CheckWholeCheckpoint(const WholeCheckpoint& checkpoint, const Progress& progress);

struct NewestCheckpoint {
  std::string path;
  WholeCheckpoint checkpoint;
  std::vector<std::string> passed_over;  // a sentence for each newer one that is not whole
};

// Whether a checkpoint is what the caller can take; its error is no damage, and is returned.
using Fits =
    std::function<absl::Status(const WholeCheckpoint& checkpoint, const std::string& path)>;

// The checkpoint that a user means by `directory`: itself if it is one, else that with the highest
// step in it which is complete and whose arrays have the bytes that were written.
//
// Errors: kNotFound: the directory is empty or absent (says what was looked for); what a killed
//         writer left hidden does not count. kInvalidArgument: it holds something, but nothing
//         whole (says what is wrong with each); those of `fits`; OpenWholeCheckpoint's.
absl::StatusOr<NewestCheckpoint> OpenNewestCheckpoint(const std::string& directory,
                                                      const Progress& progress = nullptr,
                                                      const Fits& fits = nullptr);

}  // namespace muster::checkpoint

// A checkpoint on its way to its place:
//
//   DIR/step_00000100/slices_00000.safetensors …  what each rank has written (slice_file.h)
//                     digests.sha256              of every block of that (manifest.h)
//                     training.json               the manifest: step, plan, counters, the caller's
//                                                 metadata, arrays; and a checksum of itself
//
// Written as DIR/.step_00000100.<writer>.<random>, synced, then renamed: a directory without a
// leading dot is complete. A checkpoint of the same step is replaced in one step (renameat2); where
// the file system cannot, the old one is .step_00000100.replaced.<random> for a moment, and found
// there if the writer is killed in it. Hidden directories of killed writers are removed by the next
// save on that machine, in that container, else by the first a day later: a younger one may belong
// to a writer on another node.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace muster::checkpoint {

// Asked when all files are written, before the checkpoint takes its place.
using Commit = std::function<absl::Status()>;

// Threads: thread-compatible; of two writers of one place, in any processes, the last to end wins.
class NewCheckpoint {
 public:
  // Makes the hidden directory beside `place`, and the directories above it if needed. `state`
  // is checked before anything is written.
  //
  // Errors: kInvalidArgument: a part of the path is a file, the step is negative, a text is not
  //         UTF-8, or what has the checkpoint's name is none, nor part of one; FileError's.
  static absl::StatusOr<NewCheckpoint> Begin(std::string place, const TrainingState& state);
  // Removes what was not published.
  ~NewCheckpoint();
  NewCheckpoint(NewCheckpoint&& other) noexcept
      : place_(std::move(other.place_)), hidden_(std::exchange(other.hidden_, {})) {}
  NewCheckpoint& operator=(NewCheckpoint&&) = delete;

  // Where the files of the manifest are to be, until Publish.
  const std::string& hidden() const { return hidden_; }
  const std::string& place() const { return place_; }

  // Writes digests and manifest, and renames. What a later round of the job has written is never
  // replaced.
  //
  // Errors: FileError's; what `commit` says; kCancelled: a later round has written this step. On an
  //         error earlier checkpoints are as they were; where the rename could not be synced, the
  //         new one is in its place and the one before stays beside it, hidden.
  absl::Status Publish(const Manifest& manifest, const Commit& commit = nullptr);

 private:
  NewCheckpoint(std::string place, std::string hidden)
      : place_(std::move(place)), hidden_(std::move(hidden)) {}

  std::string place_;
  std::string hidden_;  // empty once it is published
};

// Removes what killed writers left in `directory` (see above).
void RemoveLeftovers(const std::string& directory);

// Removes the checkpoints of `directory` that the one of `step` and the `keep` - 1 before it
// supersede. Others stay: those of later steps, those that a later round than `ours` has written,
// and what is not a checkpoint or is part of one.
void RemoveSuperseded(const std::string& directory, int64_t step, int64_t keep,
                      const JobRound& ours = {});

}  // namespace muster::checkpoint

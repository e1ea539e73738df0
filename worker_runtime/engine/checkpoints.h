// The state of a training on its way to and from checkpoints: each rank writes what it owns, which
// replicas share, and reads what it holds. No rank has an array that is not its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/checkpoint_fence.h"
#include "muster/engine.h"
#include "muster/model_files.h"
#include "muster/tensor.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/slice_file.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/state_view.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/engine/units_alone.h"
#include "worker_runtime/engine/updater.h"

namespace muster::engine {

// Threads: thread-compatible; all ranks call the same functions.
class Checkpoints {
 public:
  // All outlive this.
  Checkpoints(Rig& rig, TrainingProgress& progress, Updater& updater, UnitsAlone& alone,
              const StepListeners& listeners, CheckpointFence fence = {}, int64_t keep = 0)
      : rig_(rig),
        progress_(progress),
        updater_(updater),
        alone_(alone),
        listeners_(listeners),
        fence_(std::move(fence)),
        keep_(keep) {}

  // Engine's functions of these names.
  absl::Status Save(const std::string& directory,
                    const std::map<std::string, std::string>& metadata);
  absl::StatusOr<Engine::Loaded> Load(const std::string& directory);
  absl::StatusOr<Engine::Loaded> LoadBase(const std::string& directory);
  absl::Status LoadModel(const ModelFiles& files);

 private:
  // A checkpoint that all ranks have read, and why newer ones were passed over, on rank 0.
  struct Found {
    checkpoint::TrainingState state;
    std::vector<std::string> passed_over;
  };
  static Engine::Loaded LoadedOf(Found found);
  using ReadState = absl::FunctionRef<absl::Status(const checkpoint::Checkpoint& opened)>;

  absl::Status Write(const std::string& directory, const checkpoint::TrainingState& head);
  // What all ranks have written takes its place; on rank 0.
  absl::Status Publish(checkpoint::NewCheckpoint& made, const checkpoint::TrainingState& head,
                       const CheckpointArrays& arrays,
                       const std::vector<checkpoint::WrittenFile>& files);
  checkpoint::TrainingState Head(const std::map<std::string, std::string>& metadata) const;
  // This rank's file of a checkpoint that is made in the directory `hidden`.
  absl::StatusOr<checkpoint::WrittenFile> WriteOwn(const std::string& hidden,
                                                   const CheckpointArrays& arrays);
  // Those of all ranks, on rank 0.
  absl::StatusOr<std::vector<checkpoint::WrittenFile>> Gather(checkpoint::WrittenFile own);
  // Once `read` has been called the state is of no step.
  absl::StatusOr<Found> ReadNewest(const std::string& directory, const checkpoint::Fits& fits,
                                   ReadState read);
  absl::Status ReadArrays(const checkpoint::Checkpoint& opened, const CheckpointArrays& arrays,
                          std::optional<ValueRounding> rounding);

  // Returns what the device of this rank says. An error ends all groups, so that no rank waits to
  // hear of it; a file's error does not.
  absl::Status OfDevice(absl::Status said) { return device_ = rig_.Guard(std::move(said)); }

  Rig& rig_;
  TrainingProgress& progress_;
  Updater& updater_;
  UnitsAlone& alone_;
  const StepListeners& listeners_;
  const CheckpointFence fence_;
  const int64_t keep_;  // EngineOptions::keeps_checkpoints
  absl::Status device_;
};

}  // namespace muster::engine

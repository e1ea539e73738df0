// The state of a training on its way out and in: to and from a checkpoint, as copies of the ranks'
// parts in memory, and to the ranks of a later world. Each array passes through one rank whole, one
// after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/checkpoint_fence.h"
#include "muster/engine.h"
#include "muster/tensor.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/state_exchange.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/state_sources.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/engine/units_alone.h"
#include "worker_runtime/engine/updater.h"

namespace muster::engine {

// What a rank has of an array.
struct ArrayPart {
  checkpoint::ArrayInfo whole;       // of the type of the masters
  std::vector<ElementRange> ranges;  // of its elements
  Tensor elements;                   // one range after the other
};

// A rank's part of every array of a checkpoint, by name.
struct StateCopy {
  checkpoint::TrainingState head;
  std::map<std::string, ArrayPart> model;
  std::map<std::string, ArrayPart> optimizer;
};

// Threads: thread-compatible; all ranks call the same functions, but for Copy.
class StateKeeper {
 public:
  // All outlive this.
  StateKeeper(Rig& rig, TrainingProgress& progress, Updater& updater, UnitsAlone& alone,
              const StepListeners& listeners, CheckpointFence fence = {})
      : rig_(rig),
        progress_(progress),
        updater_(updater),
        alone_(alone),
        listeners_(listeners),
        fence_(std::move(fence)) {}

  // Engine's functions of these names; Copy is TakeSnapshot, and a rank that has none restores from
  // null.
  absl::Status Save(const std::string& directory,
                    const std::map<std::string, std::string>& metadata);
  absl::StatusOr<Engine::Loaded> Load(const std::string& directory);
  absl::StatusOr<Engine::Loaded> LoadBase(const std::string& directory);
  absl::StatusOr<std::unique_ptr<StateCopy>> Copy();
  absl::StatusOr<Engine::Restored> Restore(const StateCopy* own);
  absl::StatusOr<std::string> HashParameters();

 private:
  // The origin of a state.
  struct StateSource {
    int rank = 0;                                   // that has its head
    std::string name;                               // for people
    absl::StatusOr<checkpoint::TrainingState> own;  // what the rank has; of no use on the others
    // Called on every rank: array `index` is whole in `memory` of rank `giver` then.
    absl::FunctionRef<int(size_t index)> giver;
    absl::FunctionRef<absl::Status(size_t index, const Tensor& memory)> read;
  };

  // The programs of the first rank of each stage.
  std::vector<plan::Program> ProgramsOfPlaces() const;
  // All arrays of a checkpoint in one order, and memory for the largest.
  CheckpointArrays ArraysOfCheckpoint() const;
  CheckpointArrays WithMemory(CheckpointArrays all) const;
  absl::StatusOr<int64_t> TellNext(int64_t array, int root = 0);
  absl::StatusOr<std::string> WriteCheckpoint(const std::string& directory,
                                              const std::map<std::string, std::string>& metadata);
  absl::Status GiveArrays();
  absl::StatusOr<checkpoint::NewestCheckpoint> OpenCheckpoint(const std::string& directory);
  absl::StatusOr<checkpoint::NewestCheckpoint> OpenBase(const std::string& directory);
  // Every rank calls it alike. An error in reading the first array leaves all as it was.
  absl::StatusOr<checkpoint::TrainingState> TakeState(const StateSource& source);
  absl::Status TakeArrays(const StateSource& source, int64_t updates);
  absl::Status SpreadArrays(const StateSource& source, const CheckpointArrays& all,
                            std::optional<ValueRounding> rounding);
  absl::StatusOr<ArrayPart> CopyOwn(const StateExchange& exchange, const StateArray& array,
                                    TensorPool& host) const;
  absl::Status CheckCopy(const StateCopy& copy) const;
  // What every rank has of the model's arrays, `places` of each among all their elements.
  absl::StatusOr<std::vector<StatePart>> GatherParts(const StateCopy* own,
                                                     absl::Span<const ElementRange> places);
  // What the ranks give of the array goes to its place in the memory of the first of them.
  absl::Status Assemble(const StateCopy* own, const StateArray& array,
                        absl::Span<const SourceRange> sources, const Tensor& memory);

  Rig& rig_;
  TrainingProgress& progress_;
  Updater& updater_;
  UnitsAlone& alone_;
  const StepListeners& listeners_;
  const CheckpointFence fence_;
};

}  // namespace muster::engine

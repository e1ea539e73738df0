// The state of a training as copies of the ranks' parts in memory, and on its way from these to the
// ranks of a later world: each takes what it has itself, and the rest from ranks that have it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/engine.h"
#include "muster/tensor.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/state_sources.h"
#include "worker_runtime/engine/state_view.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/engine/units_alone.h"
#include "worker_runtime/engine/updater.h"

namespace muster::engine {

// What a rank has of an array.
struct ArrayPart {
  checkpoint::SlicedArray whole;     // of the type of the masters; in no piece
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
              const StepListeners& listeners)
      : rig_(rig), progress_(progress), updater_(updater), alone_(alone), listeners_(listeners) {}

  // Engine's functions of these names; Copy is TakeSnapshot, and a rank that has none restores from
  // null.
  absl::StatusOr<std::unique_ptr<StateCopy>> Copy();
  absl::StatusOr<Engine::Restored> Restore(const StateCopy* own);
  absl::StatusOr<std::string> HashParameters();

 private:
  // All of a parameter of which this rank holds `part`, on the host; tensor ranks call it alike.
  // Errors: the communicator's.
  absl::StatusOr<Tensor> WholeOf(const Parameter& parameter, Tensor part) const;
  absl::StatusOr<ArrayPart> CopyOwn(const StateView& view, const StateArray& array,
                                    TensorPool& host) const;
  absl::Status CheckCopy(const StateCopy& copy) const;
  // What every rank has of the model's arrays, `places` of each among all their elements.
  absl::StatusOr<std::vector<StatePart>> GatherParts(const StateCopy* own,
                                                     absl::Span<const ElementRange> places);
  // Takes what this rank wants of the state of `sources`, which has taken so many updates.
  absl::Status TakeArrays(const StateCopy* own, absl::Span<const ElementRange> places,
                          absl::Span<const StatePart> parts, const StateSources& sources,
                          int64_t updates);
  // The same of an array that lies at `place`.
  absl::Status TakeArray(const StateCopy* own, const StateView& view, const StateArray& array,
                         ElementRange place, absl::Span<const ElementTransfer> transfers);
  // Hashes of the values that lie on this rank: of what it holds whole, and of its shards.
  absl::StatusOr<std::array<std::string, 2>> HashHeld() const;
  // Whether ranks that hold the same values hold them with the same bits; none gathers what it does
  // not hold. Errors: kDataLoss, on all ranks: names two that do not.
  absl::Status CheckHeldAlike(absl::string_view when) const;

  Rig& rig_;
  TrainingProgress& progress_;
  Updater& updater_;
  UnitsAlone& alone_;
  const StepListeners& listeners_;
};

}  // namespace muster::engine

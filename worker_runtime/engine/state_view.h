// What a rank has of the training state, by array: to write it or to give it away, and to take what
// was read or received.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/state_sources.h"
#include "worker_runtime/engine/updater.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

enum class StateKind : uint8_t { kValue, kFirstMoment, kSecondMoment };

// Threads: thread-compatible.
class StateView {
 public:
  // `rig` outlives this. `rounding`: of what is taken; none: to nearest.
  explicit StateView(Rig& rig, std::optional<ValueRounding> rounding = std::nullopt)
      : program_(rig.program), state_(rig.held), rounding_(rounding) {}

  // Elements are those of what this rank holds of a parameter (Parameter::part).

  // What this rank owns of a parameter's arrays, in some order.
  std::vector<ElementRange> OwnRanges(const Parameter& parameter) const;
  // This rank's memory of elements within one of these, where the host can use it as elements of
  // type `dtype`; else an empty tensor.
  Tensor OwnMemory(StateKind kind, const Parameter& parameter, ElementRange range,
                   DType dtype) const;
  // Copies such elements. Errors: the device's.
  //
  // Shapes: to [range.size()], in memory of the host.
  absl::Status CopyOwn(StateKind kind, const Parameter& parameter, ElementRange range,
                       const Tensor& to) const;

  // The elements of an array that this rank takes when it is read.
  std::vector<ElementRange> WantedRanges(StateKind kind, const Parameter& parameter) const;
  // This rank's memory of elements within one of these, if to put them there is all that Take would
  // do, and the host can put elements of type `dtype` there; else an empty tensor.
  Tensor PlaceFor(StateKind kind, const Parameter& parameter, ElementRange range,
                  DType dtype) const;
  // Elements that were read go to all memory of this rank that is for them. Errors: the device's.
  //
  // Shapes: elements [range.size()], in memory of the host.
  absl::Status Take(StateKind kind, const Parameter& parameter, ElementRange range,
                    const Tensor& elements) const;

  // The dimensions along which those lie that own the same of a parameter.
  static plan::Dimensions OwnersOf(const Parameter& parameter) {
    if (parameter.part().is_cut()) return {plan::Dimension::kReplica};
    return {plan::Dimension::kReplica, plan::Dimension::kTensor};
  }

 private:
  // Elements of a parameter that this rank owns.
  struct Owned {
    int bucket = 0;
    int64_t first_in_parameter = 0;
    int64_t first_in_shard = 0;
    int64_t count = 0;

    ElementRange range() const { return {first_in_parameter, first_in_parameter + count}; }
  };
  absl::Status Copy(const Tensor& from, const Tensor& to) const;
  // Elements `range` of the value of a parameter from their masters, which lie on the host.
  absl::Status CopyToValue(const Tensor& masters, const Parameter& parameter,
                           ElementRange range) const;
  bool HasValue(const Parameter& parameter) const {
    return state_.HoldsWhole(parameter) || state_.Borrows(parameter);
  }
  std::vector<Owned> OwnedOf(const Parameter& parameter) const;
  // This rank's memory of all that is `owned`, or of a range within it.
  Tensor OwnPart(StateKind kind, const Owned& owned) const;
  Tensor OwnPart(StateKind kind, const Owned& owned, ElementRange range) const {
    return OwnPart(kind, owned).Slice(range.begin - owned.first_in_parameter, {range.size()});
  }
  // This rank's memory of a range within one of OwnRanges.
  Tensor PartWith(StateKind kind, const Parameter& parameter, ElementRange range) const;

  const plan::Program& program_;
  RankState& state_;
  const std::optional<ValueRounding> rounding_;
};

}  // namespace muster::engine

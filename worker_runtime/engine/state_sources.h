// Which ranks a state is put together from, each of which has a part of it after some step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster::engine {

// Elements of an array, or of all arrays of the model one after the other.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  ElementRange MovedBy(int64_t elements) const { return {begin + elements, end + elements}; }
  bool operator==(const ElementRange& other) const {
    return begin == other.begin && end == other.end;
  }
};

// What is in both; of size 0 or less if nothing is.
ElementRange Overlap(ElementRange a, ElementRange b);

constexpr int64_t kNoState = -1;

// What a rank has of the state.
struct StatePart {
  int64_t step = kNoState;
  std::vector<ElementRange> ranges;  // in any order
};

// Elements that a rank gives.
struct SourceRange {
  int rank = 0;
  ElementRange range;

  bool operator==(const SourceRange& other) const {
    return rank == other.rank && range == other.range;
  }
};

struct StateSources {
  int64_t step = 0;
  std::vector<SourceRange> ranges;  // ascending, each element once

  // The part of `ranges` that lies in `wanted`.
  std::vector<SourceRange> Of(ElementRange wanted) const;
  // Ascending, each once.
  std::vector<int> Ranks() const;
};

// Elements that a rank gives to another, or that it has itself: then the two are the same. They lie
// in one range of what the giver has, and in one of what the other wants.
struct ElementTransfer {
  int from = 0;
  int to = 0;
  ElementRange range;

  bool operator==(const ElementTransfer&) const = default;
};

// The transfers that give each rank what it wants: it takes its own elements of that step first,
// and what it lacks from those that `sources` names. `wanted`: by rank, in any order; no element
// twice. Ascending.
//
// Threads: pure.
std::vector<ElementTransfer> TransfersTo(absl::Span<const std::vector<ElementRange>> wanted,
                                         absl::Span<const StatePart> parts,
                                         const StateSources& sources);

// The newest step of which the ranks, `parts` by rank, have all of `num_elements` together. Each
// element comes from a low rank that has it.
//
// Errors: kNotFound: there is no such step (says what is missing of the newest).
// Threads: pure.
absl::StatusOr<StateSources> ChooseSources(absl::Span<const StatePart> parts, int64_t num_elements);

}  // namespace muster::engine

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

// The newest step of which the ranks, `parts` by rank, have all of `num_elements` together. Each
// element comes from a low rank that has it.
//
// Errors: kNotFound: there is no such step (says what is missing of the newest).
// Threads: pure.
absl::StatusOr<StateSources> ChooseSources(absl::Span<const StatePart> parts, int64_t num_elements);

}  // namespace muster::engine

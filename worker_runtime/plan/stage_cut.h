// Where a row of units is cut into the stages of a pipeline.
//
// Threads: pure.
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace muster::plan {

// The first unit of each stage, so that the stage with the most work has as little as possible; of
// several such cuts, the one whose later stages begin latest.
//
// Shapes: work [num_units], each at least 0; 1 <= stages <= num_units. Every stage has a unit.
std::vector<int> CutIntoStages(absl::Span<const double> work, int stages);

}  // namespace muster::plan

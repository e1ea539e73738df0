// Cuts a row of units into the stages of a pipeline, by what they cost.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/plan.h"

namespace muster::plan {

// The first unit of each stage, so that the stage with the most work has as little as possible; of
// several such cuts, the one whose later stages begin latest.
//
// Shapes: work [num_units], each at least 0; 1 <= stages <= num_units. Every stage has a unit.
std::vector<int> CutIntoStages(absl::Span<const double> work, int stages);

// What each unit costs by `costs`, of which the first that fits counts; `products` if it is empty.
//
// Shapes: units and products [num_units].
// Errors: kInvalidArgument: names a unit that none fits, or a cost that fits no unit.
absl::StatusOr<std::vector<double>> CostsOfUnits(absl::Span<const UnitCost> costs,
                                                 absl::Span<const std::string> units,
                                                 std::vector<double> products);

// A list that gives each unit its cost (CostsOfUnits), with one pattern for neighbours that cost
// alike where one fits them and no other.
//
// Shapes: units and costs [num_units].
std::vector<UnitCost> ListCosts(absl::Span<const std::string> units,
                                absl::Span<const double> costs);

}  // namespace muster::plan

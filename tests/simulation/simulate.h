// Seeds in ranges, for the test and for `deploy/dev simulate`: runs, shrinks what fails, says how
// to replay it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

// Empty, or what broke in the first seed of [first, last] that fails: in its shrunk form, with the
// command that replays it. `coverage` adds up what happened.
std::string RunSeeds(uint64_t first, uint64_t last, SimCoverage& coverage);

// The families without which the seed still fails are taken away one by one.
struct Shrunk {
  std::vector<std::string> without;
  std::string failure;
};
Shrunk Shrink(uint64_t seed);

// "--seed=17 --without=loss,crashes --seeds=1-1000": what main does; the exit code.
int Simulate(int argc, char** argv);

}  // namespace muster::simulation

// Environment variables that do not do what their user expects: names that nothing reads, and old
// ones. Only names of the table; what is not known is left alone.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "proto/base/environment.h"

namespace muster::launcher {

// One sentence for each that is set, in the order of their names.
std::vector<std::string> NotesOnVariables(const EnvironmentMap& environment);

}  // namespace muster::launcher

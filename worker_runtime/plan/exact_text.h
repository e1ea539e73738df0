// Numbers as text, without loss.
//
// Threads: pure.
#pragma once

#include <string>

namespace muster::plan {

// The shortest text that reads back as the same number; -0 is 0.
std::string ExactText(double value);

}  // namespace muster::plan

// The end of a process whose surroundings deny it something (memory, randomness, a library's
// algorithm) where no error can be returned. What only a programmer can have broken is
// MUSTER_CHECK's.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace muster {

// Ends the process with exit code 1. `sentence` is for people and goes to stderr.
[[noreturn]] inline void FatalError(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace muster

// How a process ended, in words: the same everywhere it is said.
//
// Threads: pure.
#pragma once

#include <string>

#include "proto/base/membership.h"

namespace muster {

// "SIGKILL" for 9; "signal 77" for one without a name.
std::string SignalName(int signal);

// "SIGKILL (killed)" for 9, for those who do not know the names.
std::string SignalInWords(int signal);

// "exited with code 1", "was ended by SIGSEGV", "could not be started: ...".
std::string HowItEnded(const WorkerFailure& failure);

}  // namespace muster

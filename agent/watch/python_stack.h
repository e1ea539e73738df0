// What a Python program executes, read from its memory while it goes on: neither stopped nor asked,
// so also of one that holds the GIL or tells nothing of itself. CPython 3.10 to 3.14
// (python_layout.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/watch/python_layout.h"
#include "agent/watch/python_objects.h"

namespace muster::agent {

// "function at file:line" of its main thread, innermost first, hangs::kStackFramesMax at most;
// empty where that executes no Python. One that moves meanwhile can give frames of two moments, or
// an end too early.
//
// Errors: kNotFound: no CPython is in it; kUnimplemented: one whose layout is not known;
//         kUnavailable: it has gone, or may not be read.
// Threads: safe; reads the files of its modules, so not on the loop.
absl::StatusOr<std::vector<std::string>> ReadPythonStack(pid_t pid);

// The same of a memory in which _PyRuntime lies at `runtime`. Terminates whatever the memory holds.
//
// Threads: pure.
absl::StatusOr<std::vector<std::string>> WalkPythonStack(uint64_t runtime, PythonVersion version,
                                                         pid_t main_thread, ReadMemory read);

}  // namespace muster::agent

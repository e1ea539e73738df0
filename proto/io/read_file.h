// Whole files: of the kernel, which has no sizes for them and may take a process away between the
// open and the read, and small ones of people.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster {

// What is in it, from one open to the end of the file.
//
// Errors: kNotFound, with the system's reason: it is not there, may not be read, is a directory, or
// the process that it tells of has ended. Threads: safe.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// The same; empty where it cannot be read.
std::string TextOf(const std::string& path);

}  // namespace muster

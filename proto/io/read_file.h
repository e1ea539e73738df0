// Whole files: of the kernel, which has no sizes for them and may take a process away between the
// open and the read, and small ones of people. What is in directories, and whole files put in the
// place of others.
//
// Threads: safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// What is in it, from one open to the end of the file, or the first `bytes_max` bytes.
//
// Errors: kNotFound, with the system's reason: it is not there, may not be read, is a directory, or
// the process that it tells of has ended.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max = SIZE_MAX);

// The same; empty where it cannot be read.
std::string TextOf(const std::string& path, size_t bytes_max = SIZE_MAX);

// The names of what is in a directory, sorted; none where it cannot be read.
std::vector<std::string> NamesIn(const std::string& directory);

// Puts a file with `bytes` in the place of what `path` names, if anything, so that readers find the
// one or the other, whole. A link there is replaced, not followed. `mode`: whatever the process's
// mask; 0: as that has it. Returns 0, or errno; then nothing is left of it.
int ReplaceFile(const std::string& path, absl::string_view bytes, mode_t mode = 0);

}  // namespace muster

// SHA-256 of the arrays of a file, by name: what a disk or a copy has changed since they were
// written is found, and the array is named.
//
// Threads: safe.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "muster/buffer.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {

// 64 hex digits by the name of an array.
using ArrayChecksums = std::map<std::string, std::string>;

std::string ChecksumOf(ConstBuffer elements);

// Errors: kInvalidArgument: an array of `checksums` is missing in `file` (names both).
absl::Status CheckNames(const SafetensorsFile& file, const ArrayChecksums& checksums);

// Reads every array of `file` that `checksums` names, a block at a time; `progress` is called after
// each array.
//
// Errors: kInvalidArgument: an array has other bytes than were written, or is missing (names file
//         and array); SafetensorsFile::ReadBytes'.
absl::Status CheckArrays(const SafetensorsFile& file, const ArrayChecksums& checksums,
                         const Progress& progress = nullptr);

}  // namespace muster::checkpoint

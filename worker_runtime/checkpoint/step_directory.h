// Names in a directory of checkpoints, and of the files in one.
//
// Threads: safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::checkpoint {

inline constexpr char kManifest[] = "training.json";
inline constexpr char kDigests[] = "digests.sha256";
inline constexpr char kModel[] = "model.safetensors";
inline constexpr char kOptimizer[] = "optimizer.safetensors";

// "step_00000100"
std::string NameOfStep(int64_t step);
// "slices_00003.safetensors"
std::string NameOfSlices(int rank);
// A name that a file of a checkpoint has.
bool IsFileOfCheckpoint(absl::string_view name);
// What is written last of one is there.
bool HasManifest(const std::string& path);

// The names in a directory. Errors: FileError's.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

struct StepDirectory {
  int64_t step = 0;
  bool in_place = false;  // not one that a killed writer had put aside
};

// Reads "step_00000100", or ".step_00000100.replaced.<random>", which PublishDirectory may leave.
std::optional<StepDirectory> ParseStepDirectory(absl::string_view name);

// The writer in ".step_00000100.<writer>.<random>"; empty in another name.
absl::string_view WriterOf(absl::string_view name);

}  // namespace muster::checkpoint

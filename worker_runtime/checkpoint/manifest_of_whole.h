// Checkpoints of before they were written in slices: model.safetensors and optimizer.safetensors
// with whole arrays, and training.json with a SHA-256 of each. They are read, and no longer
// written.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {

inline constexpr absl::string_view kWholeFormat = "muster.whole_checkpoint";

// A manifest with one piece for each array. `text`: of training.json, which is of that format.
//
// Errors: kInvalidArgument: the text is damaged, an array is missing, or the files are of different
//         steps.
// Threads: pure.
absl::StatusOr<Manifest> ManifestOfWhole(absl::string_view text, const SafetensorsFile& model,
                                         const SafetensorsFile& optimizer);

}  // namespace muster::checkpoint

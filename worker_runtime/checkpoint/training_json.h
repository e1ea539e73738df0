// The text of training.json: values to text and back. Touches no file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"

namespace muster::checkpoint {

// Errors: kInvalidArgument: a negative step; a key or value that is not UTF-8.
absl::StatusOr<std::string> FormatTrainingState(const TrainingState& state);

// Errors: kInvalidArgument: not what FormatTrainingState writes, or of a newer version.
absl::StatusOr<TrainingState> ParseTrainingState(absl::string_view text);

}  // namespace muster::checkpoint

// The model of a checkpoint, as transformers loads it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "muster/dtype.h"
#include "worker_runtime/checkpoint/checkpoint.h"

namespace muster::models {

// Writes config.json and model.safetensors into `directory`, which is made if it is not there;
// other files in it stay, such as those of a tokenizer. `dtype`: f32, bf16 or f16; nothing: the
// type that the model was trained in. Takes memory for the largest matrix of a GPT-2, whose files
// hold it turned, and for a block of another model.
//
// Errors: kInvalidArgument: `from` is damaged (Checkpoint::Read's); kFailedPrecondition:
//         it does not say which model it is of, or holds adapters alone, or `directory` is a
//         checkpoint or has a model in several files; the file system's. Each file is there whole
//         or as it was.
// Threads: of Checkpoint.
absl::Status ExportModel(const checkpoint::Checkpoint& from, const std::string& directory,
                         std::optional<DType> dtype);

}  // namespace muster::models

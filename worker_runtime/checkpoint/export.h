// A checkpoint with its arrays whole, as any reader of safetensors takes them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace muster::checkpoint {

// Writes what `from` holds as the checkpoint `place`, of which model.safetensors and
// optimizer.safetensors have every array in one piece. A checkpoint that is there is replaced, even
// by itself. Takes memory for two blocks of kDigestBlockBytes, however large an array is.
//
// Errors: kInvalidArgument: `from` is damaged (Checkpoint::Read's); kFailedPrecondition: `place` is
//         none for a checkpoint (kInvalidArgument of NewCheckpoint::Begin); the others of both, and
//         Publish's. On an error what was at `place` stays, and nothing else is left. What is left
//         of an export that was killed goes with the next one that ends well beside it.
// Threads: of Checkpoint.
absl::Status ExportWhole(const Checkpoint& from, const std::string& place,
                         const Progress& progress = nullptr);

}  // namespace muster::checkpoint

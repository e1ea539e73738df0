// The keys of a configuration file of Hugging Face Accelerate. Read by
// launcher/config/accelerate_config.h and worker_runtime/options/accelerate_config.h.
//
// Source:  accelerate 1.15, commands/config/config_args.py, commands/launch.py, utils/launch.py,
//          utils/dataclasses.py.
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/dialects/config_key.h"

namespace muster {

inline constexpr char kNoTpus[] = "TPUs are not served";
inline constexpr char kNoMegatron[] =
    "Megatron-LM is started by its own script: muster run pretrain_gpt.py [its arguments]";

// Why a key changes nothing in training, where the reader says it of other keys too.
inline constexpr char kForLaunching[] = "for launching; muster run --config_file reads it";
inline constexpr char kBlocksAreUnits[] = "units are the model's blocks";
inline constexpr char kWholeCheckpoints[] =
    "checkpoints always hold the whole model, and any number of ranks loads it";

// Each key once, by its path: "fsdp_config.fsdp_version".
absl::Span<const ConfigKey> AccelerateKeys();

// The full name of a key of a block: keys of fsdp_config and dynamo_config may lack its beginning.
// A key that is not known keeps its name.
std::string AccelerateKey(absl::string_view block, absl::string_view key);

// What `distributed_type` says: NO, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP.
//
// Errors: kInvalidArgument with what was expected.
absl::StatusOr<std::string> AccelerateKind(absl::string_view text);

}  // namespace muster

// config.json of transformers: which decoder a directory of weights is of, and back.
//
// Source:  transformers 5.24, configuration_{gpt2,llama,mistral,qwen2,qwen3,granite}.py.
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "muster/decoder_config.h"

namespace muster::plan {

struct ModelConfig {
  std::string type;       // "llama", as the file calls it
  DecoderConfig decoder;  // its context is the longest that the model was made for
};

// Dropout, the dtype and what is for generating text change nothing here. `file`: for messages.
//
// Errors: kInvalidArgument with file, line and key: no such JSON, a model_type or a value that is
//         not computed here, a key that is missing, or one that is not known and is set.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& file, const std::string& text);

// The text of such a file for a decoder of one of these kinds; that of a Mistral is a Llama's.
//
// Errors: kInvalidArgument: transformers has no model of such parts (names what differs).
absl::StatusOr<std::string> FormatModelConfig(const DecoderConfig& config);

// The context of a model of files that was made for more, where nothing else is said.
inline constexpr int64_t kContextOfFiles = 1024;

// What --model names: a known model, or that of the text of a config.json, which AddConfigFiles
// puts in the place of its directory.
//
// Errors: kInvalidArgument: neither.
absl::StatusOr<DecoderConfig> FindModel(const std::string& text);

// The key of such a text in the metadata of checkpoints.
inline constexpr char kModelConfigKey[] = "config";

}  // namespace muster::plan

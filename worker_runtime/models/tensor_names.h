// What transformers calls the parameters of a decoder, and how its files hold them. A further model
// needs its keys in options/model_config.cc, its names here, and a record in tests/data/models.
//
// Source:  transformers 5.24, modeling_{gpt2,llama,mistral,qwen2,qwen3,granite}.py (state_dict).
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/decoder_config.h"
#include "muster/tensor.h"

namespace muster::models {

// Where weights lie in several files, it says which tensor is in which.
inline constexpr char kIndex[] = "model.safetensors.index.json";

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A parameter in files.
struct ParameterSource {
  std::vector<FileTensor> tensors;  // one below the other
  bool is_transposed = false;       // the only one has a row of its for each of our columns
};

// `type`: ModelConfig::type. Names are without PrefixOf. No tensors: the models of this type have
// no such parameter.
ParameterSource SourceOf(absl::string_view type, const DecoderConfig& config,
                         absl::string_view parameter, const Shape& shape);

// The layer whose name has no prefix.
inline constexpr absl::string_view kHead = "lm_head";
// What all other names begin with, where the file is of a model with a head.
absl::string_view PrefixOf(absl::string_view type);

// Whether files of models of this type may hold that tensor though none of its parameters is it: a
// constant that is computed here, or the head of a model that uses its table of embeddings.
bool IsNoParameter(absl::string_view name, const DecoderConfig& config);

}  // namespace muster::models

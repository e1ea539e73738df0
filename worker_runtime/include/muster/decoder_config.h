// The sizes of a GPT, and adapters beside its matrices.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"

namespace muster {

struct DecoderConfig {
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t hidden_size = 384;
  int64_t context = 256;
  int64_t vocabulary = 256;  // bytes

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;

  // kInvalidArgument with the value, what was expected and a hint.
  absl::Status Validate() const;
  int64_t num_parameters() const;
};

// Adapters of low rank beside matrices of a GPT (muster/low_rank.h), which then learn alone.
struct DecoderAdapters {
  int64_t rank = 0;                        // 0: there are none
  std::string beside = "*.c_attn.weight";  // names of the matrices, with * for any text
  std::optional<DType> dtype = {};         // nothing: the model's; muster/low_rank.h says which

  friend bool operator==(const DecoderAdapters&, const DecoderAdapters&) = default;

  // Whether an adapter is to stand beside the parameter of that name.
  bool Fits(absl::string_view name) const;
};

}  // namespace muster

// The sizes of a decoder, and adapters beside its matrices.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "muster/decoder_parts.h"
#include "muster/dtype.h"

namespace muster {

// A pre-norm decoder. As it stands, it is a small GPT-2.
struct DecoderConfig {
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t hidden_size = 384;
  int64_t context = 256;
  int64_t vocabulary = 256;  // bytes

  int64_t kv_heads = 0;   // heads of keys and values; 0: as many as of queries
  int64_t head_size = 0;  // 0: hidden_size / heads
  int64_t mlp_size = 0;   // 0: 4 * hidden_size
  DecoderParts parts = {};

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;

  // The sizes for which 0 stands.
  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t head_width() const { return head_size == 0 ? hidden_size / heads : head_size; }
  int64_t mlp_width() const { return mlp_size == 0 ? 4 * hidden_size : mlp_size; }
  int64_t num_positions() const { return parts.positions == 0 ? context : parts.positions; }
  // Numbers of a token's queries, and of its queries, keys and values.
  int64_t query_width() const { return heads * head_width(); }
  int64_t qkv_width() const { return (heads + 2 * key_heads()) * head_width(); }

  // kInvalidArgument with the value, what was expected and a hint.
  absl::Status Validate() const;
  int64_t num_parameters() const;
  // Floating point operations of the forward and backward pass per token: 6 for each parameter that
  // is multiplied, and 12 * layers * query_width * context for attention, which is counted as if
  // nothing were masked.
  //
  // Source: Chowdhery et al., "PaLM", 2022, appendix B
  double flops_per_token() const;
};

// Adapters of low rank beside matrices of a decoder (muster/low_rank.h), which then learn alone.
struct DecoderAdapters {
  int64_t rank = 0;                        // 0: there are none
  std::string beside = "*.c_attn.weight";  // names of the matrices, with * for any text
  std::optional<DType> dtype = {};         // nothing: the model's; muster/low_rank.h says which

  friend bool operator==(const DecoderAdapters&, const DecoderAdapters&) = default;

  // Whether an adapter is to stand beside the parameter of that name.
  bool Fits(absl::string_view name) const;
};

}  // namespace muster

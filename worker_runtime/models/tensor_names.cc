#include "worker_runtime/models/tensor_names.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace muster::models {
namespace {

// What of a parameter's rows a tensor has.
enum class Rows { kNone, kAll, kQueries, kKeys, kMlp };

struct Part {
  const char* name = nullptr;  // of the layer
  Rows rows = Rows::kNone;
};

// A layer, whose parameters are "<layer>.weight" and "<layer>.bias" in both; * is a block's number.
struct Row {
  const char* layer;
  Part parts[3];
  bool is_transposed = false;  // weights
};

constexpr Row kGpt2[] = {
    {"wte", {{"wte", Rows::kAll}}},
    {"wpe", {{"wpe", Rows::kAll}}},
    {"h.*.ln_1", {{"h.*.ln_1", Rows::kAll}}},
    {"h.*.attn.c_attn", {{"h.*.attn.c_attn", Rows::kAll}}, true},
    {"h.*.attn.c_proj", {{"h.*.attn.c_proj", Rows::kAll}}, true},
    {"h.*.ln_2", {{"h.*.ln_2", Rows::kAll}}},
    {"h.*.mlp.c_fc", {{"h.*.mlp.c_fc", Rows::kAll}}, true},
    {"h.*.mlp.c_proj", {{"h.*.mlp.c_proj", Rows::kAll}}, true},
    {"ln_f", {{"ln_f", Rows::kAll}}},
    {"lm_head", {{"lm_head", Rows::kAll}}},
};

constexpr Row kLlama[] = {
    {"wte", {{"embed_tokens", Rows::kAll}}},
    {"h.*.ln_1", {{"layers.*.input_layernorm", Rows::kAll}}},
    {"h.*.attn.c_attn",
     {{"layers.*.self_attn.q_proj", Rows::kQueries},
      {"layers.*.self_attn.k_proj", Rows::kKeys},
      {"layers.*.self_attn.v_proj", Rows::kKeys}}},
    {"h.*.attn.q_norm", {{"layers.*.self_attn.q_norm", Rows::kAll}}},
    {"h.*.attn.k_norm", {{"layers.*.self_attn.k_norm", Rows::kAll}}},
    {"h.*.attn.c_proj", {{"layers.*.self_attn.o_proj", Rows::kAll}}},
    {"h.*.ln_2", {{"layers.*.post_attention_layernorm", Rows::kAll}}},
    {"h.*.mlp.c_fc",
     {{"layers.*.mlp.gate_proj", Rows::kMlp}, {"layers.*.mlp.up_proj", Rows::kMlp}}},
    {"h.*.mlp.c_proj", {{"layers.*.mlp.down_proj", Rows::kAll}}},
    {"ln_f", {{"norm", Rows::kAll}}},
    {"lm_head", {{"lm_head", Rows::kAll}}},
};

int64_t CountOf(Rows rows, const DecoderConfig& config, int64_t all) {
  switch (rows) {
    case Rows::kQueries:
      return config.query_width();
    case Rows::kKeys:
      return config.key_heads() * config.head_width();
    case Rows::kMlp:
      return config.mlp_width();
    default:
      return all;
  }
}

// `number` is what * stands for in `pattern`.
bool Fits(absl::string_view name, absl::string_view pattern, std::string& number) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return name == pattern;
  if (!absl::ConsumePrefix(&name, pattern.substr(0, star)) ||
      !absl::ConsumeSuffix(&name, pattern.substr(star + 1))) {
    return false;
  }
  number = std::string(name);
  return !absl::StrContains(name, '.');
}

}  // namespace

ParameterSource SourceOf(absl::string_view type, const DecoderConfig& config,
                         absl::string_view parameter, const Shape& shape) {
  const size_t dot = parameter.rfind('.');
  const absl::string_view layer = parameter.substr(0, dot);
  const absl::string_view kind = parameter.substr(dot);  // ".weight"
  std::vector<int64_t> sizes;
  for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
  ParameterSource source;
  const absl::Span<const Row> rows =
      type == "gpt2" ? absl::MakeConstSpan(kGpt2) : absl::MakeConstSpan(kLlama);
  for (const Row& row : rows) {
    std::string number;
    if (!Fits(layer, row.layer, number)) continue;
    source.is_transposed = row.is_transposed && sizes.size() == 2;
    for (const Part& part : row.parts) {
      if (part.name == nullptr) continue;
      std::vector<int64_t> there = sizes;
      there[0] = CountOf(part.rows, config, sizes[0]);
      if (source.is_transposed) std::swap(there[0], there[1]);
      source.tensors.push_back(
          {absl::StrCat(absl::StrReplaceAll(part.name, {{"*", number}}), kind), std::move(there)});
    }
  }
  return source;
}

absl::string_view PrefixOf(absl::string_view type) {
  return type == "gpt2" ? "transformer." : "model.";
}

bool IsNoParameter(absl::string_view name, const DecoderConfig& config) {
  return (config.parts.tied && name == "lm_head.weight") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::EndsWith(name, ".attn.bias") ||
         absl::EndsWith(name, ".attn.masked_bias");
}

}  // namespace muster::models

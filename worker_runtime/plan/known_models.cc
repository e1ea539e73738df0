#include "worker_runtime/plan/known_models.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"

namespace muster::plan {
namespace {

struct KnownModel {
  const char* name;
  DecoderConfig config;
};

constexpr DecoderConfig Gpt2(int64_t layers, int64_t heads, int64_t hidden_size) {
  return {.layers = layers,
          .heads = heads,
          .hidden_size = hidden_size,
          .context = 1024,
          .vocabulary = 50257};
}

struct Sizes {
  int64_t layers, heads, kv_heads, hidden_size, mlp_size, vocabulary, context;
};

constexpr DecoderConfig Llama(const Sizes& sizes, double base) {
  return {.layers = sizes.layers,
          .heads = sizes.heads,
          .hidden_size = sizes.hidden_size,
          .context = sizes.context,
          .vocabulary = sizes.vocabulary,
          .kv_heads = sizes.kv_heads,
          .mlp_size = sizes.mlp_size,
          .parts = {.norm = NormKind::kRms,
                    .rotary = RotaryPositions{.base = base, .context_max = sizes.context},
                    .mlp = Nonlinearity::kSwiGlu,
                    .biases = DecoderParts::Biases::kNone,
                    .tied = false}};
}

constexpr DecoderConfig Llama32(const Sizes& sizes) {
  DecoderConfig config = Llama(sizes, 500000);
  config.parts.rotary->scaling = RotaryPositions::Scaling::kLlama3;
  config.parts.rotary->factor = 32;
  config.parts.tied = true;
  return config;
}

constexpr DecoderConfig Granite3(const Sizes& sizes, double scores, double logits) {
  DecoderConfig config = Llama(sizes, 10000);
  config.parts.multipliers = {
      .embedding = 12, .residual = 0.22, .scores = scores, .logits = 1 / logits};
  config.parts.tied = true;
  return config;
}

constexpr DecoderConfig Qwen25(const Sizes& sizes, bool tied) {
  DecoderConfig config = Llama(sizes, 1e6);
  config.parts.norm_epsilon = 1e-6;
  config.parts.biases = DecoderParts::Biases::kQkv;
  config.parts.tied = tied;
  return config;
}

constexpr DecoderConfig Qwen3(const Sizes& sizes, bool tied) {
  DecoderConfig config = Llama(sizes, 1e6);
  if (sizes.heads * 128 != sizes.hidden_size) config.head_size = 128;
  config.parts.norm_epsilon = 1e-6;
  config.parts.head_norms = true;
  config.parts.tied = tied;
  return config;
}

constexpr KnownModel kKnown[] = {
    {"gpt2-124m", Gpt2(12, 12, 768)},
    {"gpt2-350m", Gpt2(24, 16, 1024)},
    {"gpt2-774m", Gpt2(36, 20, 1280)},
    {"gpt2-1558m", Gpt2(48, 25, 1600)},
    {"llama-2-7b", Llama({32, 32, 32, 4096, 11008, 32000, 4096}, 10000)},
    {"llama-2-13b", Llama({40, 40, 40, 5120, 13824, 32000, 4096}, 10000)},
    {"llama-3-8b", Llama({32, 32, 8, 4096, 14336, 128256, 8192}, 500000)},
    {"llama-3-70b", Llama({80, 64, 8, 8192, 28672, 128256, 8192}, 500000)},
    {"llama-3.2-1b", Llama32({16, 32, 8, 2048, 8192, 128256, 131072})},
    {"llama-3.2-3b", Llama32({28, 24, 8, 3072, 8192, 128256, 131072})},
    {"granite-7b-base", Llama({32, 32, 32, 4096, 11008, 32000, 4096}, 10000)},
    {"granite-3.0-2b-base", Granite3({40, 32, 8, 2048, 8192, 49155, 4096}, 0.015625, 8)},
    {"granite-3.0-8b-base", Granite3({40, 32, 8, 4096, 12800, 49155, 4096}, 0.0078125, 16)},
    {"qwen2.5-0.5b", Qwen25({24, 14, 2, 896, 4864, 151936, 32768}, true)},
    {"qwen2.5-1.5b", Qwen25({28, 12, 2, 1536, 8960, 151936, 131072}, true)},
    {"qwen2.5-7b", Qwen25({28, 28, 4, 3584, 18944, 152064, 131072}, false)},
    {"qwen3-0.6b", Qwen3({28, 16, 8, 1024, 3072, 151936, 40960}, true)},
    {"qwen3-8b", Qwen3({36, 32, 8, 4096, 12288, 151936, 40960}, false)},
};

}  // namespace

absl::StatusOr<DecoderConfig> FindKnownModel(absl::string_view name) {
  // The names that HF's model hub gives have owners: "meta-llama/Llama-3.2-1B".
  const std::string folded = absl::AsciiStrToLower(name.substr(name.rfind('/') + 1));
  for (const KnownModel& known : kKnown) {
    if (folded == known.name) return known.config;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", absl::Utf8SafeCHexEscape(name), "' is not a known model; expected ",
                   absl::StrJoin(KnownModelNames(), ", "), DidYouMean(folded, KnownModelNames())));
}

std::vector<std::string> KnownModelNames() {
  std::vector<std::string> names;
  for (const KnownModel& known : kKnown) names.push_back(known.name);
  return names;
}

std::string NameOf(const DecoderConfig& model) {
  for (const KnownModel& known : kKnown) {
    DecoderConfig same = known.config;
    same.context = model.context;
    same.vocabulary = model.vocabulary;
    same.parts.positions = model.parts.positions;
    if (same == model) return known.name;
  }
  const DecoderConfig sizes = {.layers = model.layers,
                               .heads = model.heads,
                               .hidden_size = model.hidden_size,
                               .context = model.context,
                               .vocabulary = model.vocabulary};
  return model == sizes ? "GPT" : "decoder";
}

std::string DescribeParts(const DecoderConfig& model) {
  const DecoderParts gpt;
  std::vector<std::string> parts;
  if (model.query_width() != model.hidden_size || model.key_heads() != model.heads) {
    parts.push_back(
        absl::StrCat("key heads ", model.key_heads(), ", head size ", model.head_width()));
  }
  if (model.parts.norm_epsilon != gpt.norm_epsilon) {
    parts.push_back(absl::StrCat("epsilon ", model.parts.norm_epsilon));
  }
  if (model.parts.rotary.has_value()) {
    const RotaryPositions& rotary = *model.parts.rotary;
    using Scaling = RotaryPositions::Scaling;
    parts.push_back(absl::StrCat("rotary ", rotary.base));
    if (rotary.scaling == Scaling::kLinear)
      absl::StrAppend(&parts.back(), " linear ", rotary.factor);
    if (rotary.scaling == Scaling::kLlama3) {
      absl::StrAppend(&parts.back(), " llama3 ", rotary.factor, " ", rotary.low_factor, " ",
                      rotary.high_factor, " ", rotary.original_context);
    }
  }
  if (model.parts.multipliers != gpt.multipliers) {
    const DecoderParts::Multipliers& by = model.parts.multipliers;
    parts.push_back(absl::StrCat("multipliers ", by.embedding, " ", by.residual, " ", by.scores,
                                 " ", by.logits));
  }
  return absl::StrJoin(parts, ", ");
}

std::string DescribeHeads(const DecoderConfig& model) {
  return absl::StrCat(model.heads, model.heads == 1 ? " head" : " heads",
                      model.key_heads() == model.heads
                          ? ""
                          : absl::StrCat(" with ", model.key_heads(), " of keys"));
}

}  // namespace muster::plan

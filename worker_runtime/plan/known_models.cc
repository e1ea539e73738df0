#include "worker_runtime/plan/known_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/gpt_parameters.h"

namespace muster::plan {
namespace {

using Attention = KnownModel::Attention;

struct Sizes {
  const char* name;
  int64_t layers, heads, kv_heads, hidden_size, mlp_size, vocabulary, context;
  bool tied = false;
  Attention attention = Attention::kPlain;
  int64_t head_size = 0;  // 0: hidden_size / heads
};

constexpr Sizes kSizes[] = {
    {"llama-2-7b", 32, 32, 32, 4096, 11008, 32000, 4096},
    {"llama-2-13b", 40, 40, 40, 5120, 13824, 32000, 4096},
    {"llama-3-8b", 32, 32, 8, 4096, 14336, 128256, 8192},
    {"llama-3-70b", 80, 64, 8, 8192, 28672, 128256, 8192},
    {"llama-3.2-1b", 16, 32, 8, 2048, 8192, 128256, 131072, true},
    {"llama-3.2-3b", 28, 24, 8, 3072, 8192, 128256, 131072, true},
    {"granite-7b-base", 32, 32, 32, 4096, 11008, 32000, 4096},
    {"granite-3.0-2b-base", 40, 32, 8, 2048, 8192, 49155, 4096, true},
    {"granite-3.0-8b-base", 40, 32, 8, 4096, 12800, 49155, 4096, true},
    {"qwen2.5-0.5b", 24, 14, 2, 896, 4864, 151936, 32768, true, Attention::kBiases},
    {"qwen2.5-1.5b", 28, 12, 2, 1536, 8960, 151936, 131072, true, Attention::kBiases},
    {"qwen2.5-7b", 28, 28, 4, 3584, 18944, 152064, 131072, false, Attention::kBiases},
    {"qwen3-0.6b", 28, 16, 8, 1024, 3072, 151936, 40960, true, Attention::kNorms, 128},
    {"qwen3-8b", 36, 32, 8, 4096, 12288, 151936, 40960, false, Attention::kNorms, 128},
};

KnownModel ModelOf(const Sizes& sizes) {
  return {.name = sizes.name,
          .layers = sizes.layers,
          .heads = sizes.heads,
          .hidden_size = sizes.hidden_size,
          .context = sizes.context,
          .vocabulary = sizes.vocabulary,
          .kv_heads = sizes.kv_heads,
          .head_size = sizes.head_size == 0 ? sizes.hidden_size / sizes.heads : sizes.head_size,
          .mlp_size = sizes.mlp_size,
          .tied = sizes.tied,
          .attention = sizes.attention};
}

int64_t QueryWidth(const KnownModel& model) { return model.heads * model.head_size; }
int64_t KeyWidth(const KnownModel& model) { return model.kv_heads * model.head_size; }

// The names that HF's model hub gives: "meta-llama/Llama-3.2-1B" without its owner.
std::string HubName(absl::string_view name) {
  return absl::AsciiStrToLower(name.substr(name.rfind('/') + 1));
}

// Bytes that a block keeps for its backward pass, and that it works in at most beside them.
struct BlockBytes {
  int64_t kept = 0;
  int64_t works_in = 0;
};

BlockBytes BytesOfBlock(const KnownModel& model, const TracedBatch& batch) {
  const int64_t rows = batch.batch * batch.sequence;
  const auto element = static_cast<int64_t>(SizeOf(batch.dtype));
  const int64_t hidden = model.hidden_size;
  // The block's input and the residual behind attention, each with its normed form; what attention
  // reads and gives; gate, up and their product.
  const int64_t kept =
      4 * hidden + 2 * QueryWidth(model) + 2 * KeyWidth(model) + 3 * model.mlp_size;
  const int64_t statistics = 4 * rows * (2 + model.heads);  // of norms and of softmax
  // Gradients of the widest places: of gate, up and their product, and of a residual.
  const int64_t widest = 3 * model.mlp_size + 2 * hidden;
  return {rows * kept * element + statistics, rows * widest * element};
}

std::vector<int> Numbers(int first, int end) {
  std::vector<int> numbers;
  for (int i = first; i < end; ++i) numbers.push_back(i);
  return numbers;
}

UseTrace TraceOf(const KnownModel& model, const TracedBatch& batch, int first_unit, int end_unit) {
  const int64_t rows = batch.batch * batch.sequence;
  const auto element = static_cast<int64_t>(SizeOf(batch.dtype));
  const int64_t passed = rows * model.hidden_size * element;
  const int num_units = static_cast<int>(model.layers) + 2;
  const int64_t blocks = std::min<int64_t>(end_unit, num_units - 1) - std::max(first_unit, 1);
  const BlockBytes block = BytesOfBlock(model, batch);
  UseTrace trace;
  trace.forward = Numbers(first_unit, end_unit);
  const bool has_head = end_unit == num_units;
  if (has_head && model.tied) trace.forward.push_back(0);
  trace.backward.assign(trace.forward.rbegin(), trace.forward.rend());
  trace.weights = trace.backward;
  if (batch.recompute.kind == Recompute::Kind::kFull) {
    const int64_t each = batch.recompute.layers;
    trace.kept_bytes = (blocks + each - 1) / each * passed;
    trace.peak_bytes = trace.kept_bytes + std::min(each, blocks) * block.kept + block.works_in;
  } else {
    const bool is_selective = batch.recompute.kind == Recompute::Kind::kSelective;
    const int64_t kept = block.kept - (is_selective ? rows * model.mlp_size * element : 0);
    trace.kept_bytes = blocks * kept;
    trace.peak_bytes =
        trace.kept_bytes + block.works_in + (is_selective ? rows * model.mlp_size * element : 0);
  }
  if (has_head) {
    const int64_t head =
        3 * passed + std::min(kernels::kLogitsAtOnce, rows * model.vocabulary) * element;
    trace.kept_bytes += 2 * passed;
    trace.peak_bytes = std::max(trace.peak_bytes, trace.kept_bytes) + head;
  }
  return trace;
}

}  // namespace

absl::StatusOr<KnownModel> FindKnownModel(absl::string_view name) {
  const std::string folded = HubName(name);
  for (const Sizes& sizes : kSizes) {
    if (folded == sizes.name) return ModelOf(sizes);
  }
  const absl::StatusOr<DecoderConfig> gpt = NamedGpt(folded);
  if (gpt.ok()) {
    return KnownModel{.name = folded,
                      .layers = gpt->layers,
                      .heads = gpt->heads,
                      .hidden_size = gpt->hidden_size,
                      .context = gpt->context,
                      .vocabulary = gpt->vocabulary,
                      .gpt = *gpt};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", absl::Utf8SafeCHexEscape(name), "' is not a known model; expected ",
                   absl::StrJoin(KnownModelNames(), ", "), DidYouMean(folded, KnownModelNames())));
}

std::vector<std::string> KnownModelNames() {
  std::vector<std::string> names = NamedGpts();
  for (const Sizes& sizes : kSizes) names.push_back(sizes.name);
  return names;
}

std::vector<std::string> UnitNamesOf(const KnownModel& model) {
  std::vector<std::string> names = {"embedding"};
  for (int64_t layer = 0; layer < model.layers; ++layer) names.push_back(absl::StrCat("h.", layer));
  names.push_back("head");
  return names;
}

std::vector<ParameterInfo> ParametersOf(const KnownModel& model, DType dtype) {
  std::vector<ParameterInfo> all;
  const int64_t hidden = model.hidden_size;
  const auto add = [&](int unit, std::string name, std::vector<int64_t> shape) {
    const bool is_matrix = shape.size() > 1;
    all.push_back({.name = std::move(name),
                   .shape = std::move(shape),
                   .unit = unit,
                   .weight_decay = is_matrix,
                   .dtype = dtype});
  };
  add(0, "embed_tokens.weight", {model.vocabulary, hidden});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const int unit = static_cast<int>(layer) + 1;
    const std::string h = absl::StrCat("layers.", layer, ".");
    add(unit, h + "input_layernorm.weight", {hidden});
    for (const auto& [name, width] : {std::pair{"q_proj", QueryWidth(model)},
                                      {"k_proj", KeyWidth(model)},
                                      {"v_proj", KeyWidth(model)}}) {
      add(unit, absl::StrCat(h, "self_attn.", name, ".weight"), {width, hidden});
      if (model.attention != Attention::kBiases) continue;
      add(unit, absl::StrCat(h, "self_attn.", name, ".bias"), {width});
    }
    if (model.attention == Attention::kNorms) {
      add(unit, h + "self_attn.q_norm.weight", {model.head_size});
      add(unit, h + "self_attn.k_norm.weight", {model.head_size});
    }
    add(unit, h + "self_attn.o_proj.weight", {hidden, QueryWidth(model)});
    add(unit, h + "post_attention_layernorm.weight", {hidden});
    add(unit, h + "mlp.gate_proj.weight", {model.mlp_size, hidden});
    add(unit, h + "mlp.up_proj.weight", {model.mlp_size, hidden});
    add(unit, h + "mlp.down_proj.weight", {hidden, model.mlp_size});
  }
  const int head = static_cast<int>(model.layers) + 1;
  add(head, "norm.weight", {hidden});
  if (!model.tied) add(head, "lm_head.weight", {model.vocabulary, hidden});
  return all;
}

int64_t NumParametersOf(const KnownModel& model) {
  if (model.gpt.has_value()) return model.gpt->num_parameters();
  int64_t total = 0;
  for (const ParameterInfo& parameter : ParametersOf(model)) total += parameter.num_elements();
  return total;
}

// Counts as GptFlopsPerToken does: 6 for each parameter that is multiplied, and attention unmasked.
double FlopsPerToken(const KnownModel& model, int64_t sequence) {
  const double table =
      static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden_size);
  const double multiplied = static_cast<double>(NumParametersOf(model)) - (model.tied ? 0 : table);
  return 6 * multiplied + 12 * static_cast<double>(model.layers) *
                              static_cast<double>(QueryWidth(model)) *
                              static_cast<double>(sequence);
}

std::vector<double> ProductsOfUnits(const KnownModel& model, int64_t sequence) {
  const double head =
      6 * static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden_size);
  const double blocks = FlopsPerToken(model, sequence) - head;
  std::vector<double> products(model.layers + 2, blocks / static_cast<double>(model.layers));
  products.front() = 0;
  products.back() = head;
  return products;
}

std::vector<StageInfo> TraceStages(const KnownModel& model, const TracedBatch& batch,
                                   absl::Span<const int> first_units) {
  const std::vector<ParameterInfo> parameters = ParametersOf(model);
  const BlockLayout layout = PlanBlockLayout(parameters);
  const int num_units = static_cast<int>(model.layers) + 2;
  const int stages = static_cast<int>(first_units.size());
  std::vector<StageInfo> infos;
  for (int s = 0; s < stages; ++s) {
    const int end = s + 1 < stages ? first_units[s + 1] : num_units;
    StageInfo info =
        StageOfUnits(layout, first_units[s], end, TraceOf(model, batch, first_units[s], end));
    for (int p = static_cast<int>(parameters.size()) - 1; p >= 0; --p) {
      const int unit = parameters[p].unit;
      if (first_units[s] <= unit && unit < end) info.trace.gradients.push_back(p);
    }
    if (model.tied && s > 0 && s + 1 == stages) info.borrowed = {0};
    info.received_bytes = batch.batch * batch.sequence * model.hidden_size *
                          static_cast<int64_t>(SizeOf(batch.dtype));
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace muster::plan

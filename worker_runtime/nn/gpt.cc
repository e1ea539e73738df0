#include "muster/gpt.h"

#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr double kDeviation = 0.02;
// Sizes above are surely mistakes, and their products would not fit 64 bits.
constexpr int64_t kLargestSize = int64_t{1} << 24;

absl::Status CheckSize(absl::string_view name, int64_t value) {
  if (value >= 1 && value <= kLargestSize) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be between 1 and ", kLargestSize, ", not ", value));
}

int64_t LargestDivisorUpTo(int64_t n, int64_t bound) {
  while (n % bound != 0) --bound;
  return bound;
}

}  // namespace

absl::Status GptConfig::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckSize("layers", layers));
  MUSTER_RETURN_IF_ERROR(CheckSize("heads", heads));
  MUSTER_RETURN_IF_ERROR(CheckSize("width", width));
  MUSTER_RETURN_IF_ERROR(CheckSize("context", context));
  MUSTER_RETURN_IF_ERROR(CheckSize("vocabulary", vocabulary));
  if (heads > width || width % heads != 0) {
    const int64_t fitting = LargestDivisorUpTo(width, heads < width ? heads : width);
    return absl::InvalidArgumentError(
        absl::StrCat("heads must divide the width: ", width, " is not a multiple of ", heads,
                     "; try heads ", fitting, " or width ", (width + heads - 1) / heads * heads));
  }
  return absl::OkStatus();
}

int64_t GptConfig::num_parameters() const {
  const int64_t block = 12 * width * width + 13 * width;
  return (vocabulary + context) * width + layers * block + 2 * width;
}

GptBlock::GptBlock(const Scope& scope, const GptConfig& config)
    : context_(config.context),
      norm1_(scope / "ln_1", config.width),
      qkv_(scope / "attn" / "c_attn", {.inputs = config.width, .outputs = 3 * config.width}),
      attention_(config.heads),
      projection_(scope / "attn" / "c_proj",
                  {.inputs = config.width,
                   .outputs = config.width,
                   .deviation = kDeviation / std::sqrt(2.0 * config.layers)}),
      norm2_(scope / "ln_2", config.width),
      widen_(scope / "mlp" / "c_fc", {.inputs = config.width, .outputs = 4 * config.width}),
      narrow_(scope / "mlp" / "c_proj",
              {.inputs = 4 * config.width,
               .outputs = config.width,
               .deviation = kDeviation / std::sqrt(2.0 * config.layers)}) {}

Activation GptBlock::Forward(Tape& tape, const Activation& x) const {
  const Activation attended = attention_.Forward(tape, qkv_.Forward(tape, norm1_.Forward(tape, x)));
  return Mlp(tape, projection_.ForwardOnto(tape, x, attended));
}

Activation GptBlock::ForwardCached(Tape& tape, const Activation& x, KeyValueCache& cache) const {
  const Tensor qkv = qkv_.Forward(tape, norm1_.Forward(tape, x)).value;
  const Activation attended = {attention_.ForwardCached(tape, qkv, cache, context_)};
  return Mlp(tape, projection_.ForwardOnto(tape, x, attended));
}

Activation GptBlock::Mlp(Tape& tape, const Activation& x) const {
  const Activation hidden = widen_.Forward(tape, norm2_.Forward(tape, x));
  return narrow_.ForwardOnto(tape, x, gelu_.Forward(tape, hidden));
}

Gpt::Gpt(const GptConfig& config, ParameterStore& store)
    : config_(config),
      embedding_((store.BeginUnit("embedding"), Scope(store)), {.vocabulary = config.vocabulary,
                                                                .context = config.context,
                                                                .width = config.width,
                                                                .deviation = kDeviation}) {
  for (int layer = 0; layer < config.layers; ++layer) {
    const Scope scope = Scope(store) / "h" / layer;
    store.BeginUnit(scope.prefix());
    blocks_.push_back(std::make_unique<GptBlock>(scope, config));
  }
  store.BeginUnit("head");
  final_norm_ = std::make_unique<LayerNorm>(Scope(store) / "ln_f", config.width);
}

absl::StatusOr<std::unique_ptr<Gpt>> Gpt::Create(const GptConfig& config, ParameterStore& store) {
  MUSTER_RETURN_IF_ERROR(config.Validate());
  return absl::WrapUnique(new Gpt(config, store));
}

Activation Gpt::Forward(Tape& tape, const TokenBatch& batch) const {
  Activation x = embedding_.Forward(tape, batch);
  for (const auto& block : blocks_) x = block->Forward(tape, x);
  return Head(tape, x);
}

Activation Gpt::Head(Tape& tape, const Activation& x) const {
  return TiedHead(tape, final_norm_->Forward(tape, x), embedding_.token_table());
}

Loss Gpt::ComputeLoss(Tape& tape, const TokenBatch& batch,
                      absl::Span<const int32_t> targets) const {
  return CrossEntropy(tape, Forward(tape, batch), targets);
}

}  // namespace muster

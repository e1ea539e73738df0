// The layers of a GPT, whole and in the pieces that it may be cut into.
#include "muster/gpt.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr double kInitialStd = 0.02;

}  // namespace

GptBlock::GptBlock(const Scope& scope, const GptConfig& config)
    : context_(config.context),
      norm1_(scope / "ln_1", config.hidden_size),
      qkv_(scope / "attn" / "c_attn",
           {.inputs = config.hidden_size, .outputs = 3 * config.hidden_size}),
      attention_(config.heads),
      projection_(scope / "attn" / "c_proj",
                  {.inputs = config.hidden_size,
                   .outputs = config.hidden_size,
                   .initial_std = kInitialStd / std::sqrt(2.0 * config.layers)}),
      norm2_(scope / "ln_2", config.hidden_size),
      widen_(scope / "mlp" / "c_fc",
             {.inputs = config.hidden_size, .outputs = 4 * config.hidden_size}),
      narrow_(scope / "mlp" / "c_proj",
              {.inputs = 4 * config.hidden_size,
               .outputs = config.hidden_size,
               .initial_std = kInitialStd / std::sqrt(2.0 * config.layers)}) {}

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
  return narrow_.ForwardOntoGelu(tape, x, widen_.ForwardGelu(tape, norm2_.Forward(tape, x)));
}

Gpt::Gpt(const GptConfig& config, ParameterStore& store)
    : config_(config),
      embedding_((store.BeginUnit("embedding"), Scope(store)), {.vocabulary = config.vocabulary,
                                                                .context = config.context,
                                                                .width = config.hidden_size,
                                                                .initial_std = kInitialStd}) {
  for (int layer = 0; layer < config.layers; ++layer) {
    const Scope scope = Scope(store) / "h" / layer;
    store.BeginUnit(scope.prefix());
    blocks_.push_back(std::make_unique<GptBlock>(scope, config));
  }
  store.BeginUnit("head");
  final_norm_ = std::make_unique<LayerNorm>(Scope(store) / "ln_f", config.hidden_size);
}

absl::StatusOr<std::unique_ptr<Gpt>> Gpt::Create(const GptConfig& config, ParameterStore& store) {
  MUSTER_RETURN_IF_ERROR(config.Validate());
  return absl::WrapUnique(new Gpt(config, store));
}

Activation Gpt::Forward(Tape& tape, const TokenBatch& batch) const {
  const int layers = static_cast<int>(blocks_.size());
  return Head(tape, ForwardBlocks(tape, embedding_.Forward(tape, batch), {0, layers}));
}

Activation Gpt::ForwardBlocks(Tape& tape, Activation x, UnitRange blocks) const {
  const bool full = tape.recompute().kind == Recompute::Kind::kFull;
  const int each = full ? static_cast<int>(tape.recompute().layers) : blocks.end - blocks.first;
  for (int first = blocks.first; first < blocks.end; first += each) {
    const auto layers =
        absl::MakeConstSpan(blocks_).subspan(first, std::min(each, blocks.end - first));
    const auto region = [layers](Tape& on, Activation y) {
      for (const auto& block : layers) y = block->Forward(on, y);
      return y;
    };
    x = full ? tape.Recomputed(x, region) : region(tape, x);
  }
  return x;
}

// Unit 0 is the embedding, then come the blocks, and the head is the last.
UnitModel Gpt::Units() const {
  return [this](Tape& tape, UnitRange units, const ModelInput& input,
                const Activation& received) -> absl::StatusOr<StageOutput> {
    const int layers = static_cast<int>(blocks_.size());
    Activation x = units.first == 0 ? embedding_.Forward(tape, input.tokens) : received;
    x = ForwardBlocks(tape, std::move(x),
                      {std::max(units.first - 1, 0), std::min(units.end - 1, layers)});
    if (units.end < layers + 2) return StageOutput{.passed_on = std::move(x)};
    return StageOutput{.loss = HeadLoss(tape, x, input.targets)};
  };
}

Activation Gpt::Head(Tape& tape, const Activation& x) const {
  return TiedHead(tape, final_norm_->Forward(tape, x), embedding_.token_table());
}

Loss Gpt::HeadLoss(Tape& tape, const Activation& x, absl::Span<const int32_t> targets) const {
  return TiedHeadLoss(tape, final_norm_->Forward(tape, x), embedding_.token_table(), targets);
}

Loss Gpt::ComputeLoss(Tape& tape, const TokenBatch& batch,
                      absl::Span<const int32_t> targets) const {
  const int layers = static_cast<int>(blocks_.size());
  return HeadLoss(tape, ForwardBlocks(tape, embedding_.Forward(tape, batch), {0, layers}), targets);
}

}  // namespace muster

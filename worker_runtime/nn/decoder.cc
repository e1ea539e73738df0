// The layers of a decoder, whole and in the pieces that it may be cut into.
#include "muster/decoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr double kInitialStd = 0.02;
constexpr char kWeight[] = ".weight";
constexpr char kAdapter[] = ".lora.";

AdaptedLinear MatrixIn(const Scope& scope, const DecoderAdapters& adapters,
                       const Linear::Options& options) {
  const bool fits = adapters.Fits(absl::StrCat(scope.prefix(), kWeight));
  return AdaptedLinear(scope, options, fits ? adapters.rank : 0, adapters.dtype);
}

absl::Status CheckRank(const DecoderConfig& config, const DecoderAdapters& adapters) {
  if (0 <= adapters.rank && adapters.rank <= config.hidden_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the rank of adapters must be between 1 and the hidden size, which is ",
                   config.hidden_size, ", not ", adapters.rank));
}

// Freezes the parameters from number `first` on, but for adapters; each that the pattern fits must
// be a matrix that has got one.
absl::Status FreezeBase(const ParameterStore& store, size_t first,
                        const DecoderAdapters& adapters) {
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapters beside '", adapters.beside, "': it fits ", what...,
                     "; expected matrices of blocks, such as *.c_attn.weight, or all of them: "
                     "h.*.c_*.weight"));
  };
  bool fits_any = false;
  std::vector<std::string> names;
  for (const auto& parameter : store.parameters().subspan(first)) {
    const std::string& name = parameter->name();
    if (absl::StrContains(name, kAdapter)) continue;
    names.push_back(name);
    parameter->Freeze();
    if (!adapters.Fits(name)) continue;
    fits_any = true;
    const std::string layer(absl::StripSuffix(name, kWeight));
    if (layer != name && store.Find(absl::StrCat(layer, kAdapter, "down")) != nullptr) continue;
    const bool is_matrix = parameter->shape().rank() == 2;
    return refuse(name, is_matrix ? ", a table of embeddings" : ", which is not a matrix");
  }
  if (fits_any) return absl::OkStatus();
  return refuse("no parameter of the model", DidYouMean(adapters.beside, names));
}

Norm NormIn(const Scope& scope, const DecoderConfig& config) {
  return Norm(scope, config.hidden_size, config.parts.norm, config.parts.norm_epsilon);
}

bool HasBias(const DecoderConfig& config, bool of_qkv = false) {
  return config.parts.biases == DecoderParts::Biases::kAll ||
         (of_qkv && config.parts.biases == DecoderParts::Biases::kQkv);
}

// The initial deviation of matrices whose products are added to the residual.
double ResidualStd(const DecoderConfig& config) {
  return kInitialStd / std::sqrt(2.0 * static_cast<double>(config.layers));
}

std::unique_ptr<const HeadNorms> HeadNormsIn(const Scope& scope, const DecoderConfig& config) {
  const int64_t tensor_ranks = scope.store().tensor_ranks().size;
  if (!config.parts.head_norms) return nullptr;
  return std::make_unique<HeadNorms>(
      scope, HeadNorms::Options{.heads = config.heads / tensor_ranks,
                                .kv_heads = config.key_heads() / tensor_ranks,
                                .head_size = config.head_width(),
                                .epsilon = config.parts.norm_epsilon});
}

// Each tensor rank has some heads whole.
CausalAttention::Options AttentionOf(const DecoderConfig& config, int64_t tensor_ranks) {
  return {.heads = config.heads / tensor_ranks,
          .kv_heads = config.key_heads() / tensor_ranks,
          .score_scale = config.parts.multipliers.scores,
          .rotary = config.parts.rotary.has_value()
                        ? config.parts.rotary->Frequencies(config.head_width())
                        : std::vector<double>()};
}

std::vector<int64_t> SectionsOfQkv(const DecoderConfig& config) {
  const int64_t keys = config.key_heads() * config.head_width();
  return {config.query_width(), keys, keys};
}

// Those of a SwiGLU are gates and what they let through.
std::vector<int64_t> SectionsOfMlp(const DecoderConfig& config) {
  if (config.parts.mlp != Nonlinearity::kSwiGlu) return {config.mlp_width()};
  return {config.mlp_width(), config.mlp_width()};
}

// Whether tensor ranks can share the heads and the rest of a block.
absl::Status CheckTensorRanks(const DecoderConfig& config, int64_t ranks) {
  if (ranks == 1) return absl::OkStatus();
  const std::pair<absl::string_view, int64_t> numbers[] = {
      {"heads", config.heads},
      {"heads of keys", config.key_heads()},
      {"columns between the MLP's matrices", config.mlp_width()}};
  for (const auto& [name, number] : numbers) {
    if (number % ranks == 0) continue;
    int64_t fits = std::min(ranks, number);
    while (config.heads % fits != 0 || config.key_heads() % fits != 0 ||
           config.mlp_width() % fits != 0) {
      --fits;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("plan: tensor_ranks is ", ranks, ", and the model has ", number, " ", name,
                     ", which as many ranks do not share; ", fits, " would do"));
  }
  return absl::OkStatus();
}

}  // namespace

DecoderBlock::DecoderBlock(const Scope& scope, const DecoderConfig& config,
                           const DecoderAdapters& adapters)
    : context_(config.context),
      nonlinearity_(config.parts.mlp),
      residual_(config.parts.multipliers.residual),
      norm1_(NormIn(scope / "ln_1", config)),
      qkv_(MatrixIn(scope / "attn" / "c_attn", adapters,
                    {.inputs = config.hidden_size,
                     .outputs = config.qkv_width(),
                     .bias = HasBias(config, /*of_qkv=*/true),
                     .cut = Linear::Cut::kOutputs,
                     .sections = SectionsOfQkv(config)})),
      head_norms_(HeadNormsIn(scope / "attn", config)),
      attention_(AttentionOf(config, scope.store().tensor_ranks().size)),
      projection_(MatrixIn(scope / "attn" / "c_proj", adapters,
                           {.inputs = config.query_width(),
                            .outputs = config.hidden_size,
                            .initial_std = ResidualStd(config),
                            .bias = HasBias(config),
                            .cut = Linear::Cut::kInputs})),
      norm2_(NormIn(scope / "ln_2", config)),
      widen_(MatrixIn(scope / "mlp" / "c_fc", adapters,
                      {.inputs = config.hidden_size,
                       .outputs = nonlinearity_ == Nonlinearity::kSwiGlu ? 2 * config.mlp_width()
                                                                         : config.mlp_width(),
                       .bias = HasBias(config),
                       .cut = Linear::Cut::kOutputs,
                       .sections = SectionsOfMlp(config)})),
      narrow_(MatrixIn(scope / "mlp" / "c_proj", adapters,
                       {.inputs = config.mlp_width(),
                        .outputs = config.hidden_size,
                        .initial_std = ResidualStd(config),
                        .bias = HasBias(config),
                        .cut = Linear::Cut::kInputs})) {}

Activation DecoderBlock::Qkv(Tape& tape, const Activation& x) const {
  const Activation qkv = qkv_.Forward(tape, norm1_.Forward(tape, x));
  return head_norms_ == nullptr ? qkv : head_norms_->Forward(tape, qkv);
}

Activation DecoderBlock::Forward(Tape& tape, const Activation& x) const {
  const Activation attended = Scale(tape, attention_.Forward(tape, Qkv(tape, x)), residual_);
  return Mlp(tape, projection_.ForwardOnto(tape, x, attended));
}

Activation DecoderBlock::ForwardCached(Tape& tape, const Activation& x,
                                       KeyValueCache& cache) const {
  const Activation attended = {attention_.ForwardCached(tape, Qkv(tape, x).value, cache, context_)};
  return Mlp(tape, projection_.ForwardOnto(tape, x, Scale(tape, attended, residual_)));
}

Activation DecoderBlock::Mlp(Tape& tape, const Activation& x) const {
  const Activation in = norm2_.Forward(tape, x);
  if (residual_ == 1 && !widen_.is_adapted() && !narrow_.is_adapted()) {
    return narrow_.base().ForwardOntoActivated(
        tape, x, widen_.base().ForwardActivated(tape, in, nonlinearity_));
  }
  const Activation widened = Nonlinear(nonlinearity_).Forward(tape, widen_.Forward(tape, in));
  return narrow_.ForwardOnto(tape, x, Scale(tape, widened, residual_));
}

Decoder::Decoder(const DecoderConfig& config, ParameterStore& store,
                 const DecoderAdapters& adapters)
    : config_(config),
      embedding_((store.BeginUnit("embedding"), Scope(store)),
                 {.vocabulary = config.vocabulary,
                  .context = config.parts.rotary.has_value() ? 0 : config.num_positions(),
                  .width = config.hidden_size,
                  .initial_std = kInitialStd}) {
  for (int layer = 0; layer < config.layers; ++layer) {
    const Scope scope = Scope(store) / "h" / layer;
    store.BeginUnit(scope.prefix());
    blocks_.push_back(std::make_unique<DecoderBlock>(scope, config, adapters));
  }
  store.BeginUnit("head");
  final_norm_ = std::make_unique<Norm>(NormIn(Scope(store) / "ln_f", config));
  if (config.parts.tied) return;
  head_ = &(Scope(store) / "lm_head")
               .Declare({.name = "weight",
                         .shape = {config.vocabulary, config.hidden_size},
                         .initializer = Initializer::Normal(kInitialStd),
                         .weight_decay = true});
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const DecoderConfig& config,
                                                         ParameterStore& store,
                                                         const DecoderAdapters& adapters) {
  MUSTER_RETURN_IF_ERROR(config.Validate());
  MUSTER_RETURN_IF_ERROR(CheckRank(config, adapters));
  MUSTER_RETURN_IF_ERROR(CheckTensorRanks(config, store.tensor_ranks().size));
  const size_t first = store.parameters().size();
  auto decoder = absl::WrapUnique(new Decoder(config, store, adapters));
  if (adapters.rank > 0) MUSTER_RETURN_IF_ERROR(FreezeBase(store, first, adapters));
  return decoder;
}

Activation Decoder::Forward(Tape& tape, const TokenBatch& batch) const {
  const int layers = static_cast<int>(blocks_.size());
  return Head(tape, ForwardBlocks(tape, Embed(tape, batch), {0, layers}));
}

Activation Decoder::Embed(Tape& tape, const TokenBatch& batch, int64_t first_position) const {
  const int64_t tokens = first_position + batch.sequence;
  if (tokens > config_.context) {
    return tape.Refuse(absl::StrCat("embedding: a sequence of ", tokens,
                                    " tokens is longer than the context of ", config_.context));
  }
  return Scale(tape, embedding_.Forward(tape, batch, first_position),
               config_.parts.multipliers.embedding);
}

Activation Decoder::ForwardBlocks(Tape& tape, Activation x, UnitRange blocks) const {
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
UnitModel Decoder::Units() const {
  return [this](Tape& tape, UnitRange units, const ModelInput& input,
                absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
    const int layers = static_cast<int>(blocks_.size());
    Activation x = units.first == 0 ? Embed(tape, input.tokens) : received[0];
    x = ForwardBlocks(tape, std::move(x),
                      {std::max(units.first - 1, 0), std::min(units.end - 1, layers)});
    if (units.end < layers + 2) return StageOutput{.passed_on = {std::move(x)}};
    return StageOutput{.loss = HeadLoss(tape, x, input.targets)};
  };
}

// Multiplied with what logits are: the rows are shorter.
Activation Decoder::FinalNorm(Tape& tape, const Activation& x) const {
  return Scale(tape, final_norm_->Forward(tape, x), config_.parts.multipliers.logits);
}

Activation Decoder::Head(Tape& tape, const Activation& x) const {
  return LmHead(tape, FinalNorm(tape, x), head_table());
}

Loss Decoder::HeadLoss(Tape& tape, const Activation& x, absl::Span<const int32_t> targets) const {
  return LmHeadLoss(tape, FinalNorm(tape, x), head_table(), targets);
}

Loss Decoder::ComputeLoss(Tape& tape, const TokenBatch& batch,
                          absl::Span<const int32_t> targets) const {
  const int layers = static_cast<int>(blocks_.size());
  return HeadLoss(tape, ForwardBlocks(tape, Embed(tape, batch), {0, layers}), targets);
}

}  // namespace muster

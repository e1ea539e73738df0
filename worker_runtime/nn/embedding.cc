// Token and position tables on the tape, and the check of what indexes them.
#include "worker_runtime/kernels/embedding.h"

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/cross_entropy.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"

namespace muster {

absl::Status ValidateTokens(const TokenBatch& batch, int64_t vocabulary, bool allow_ignored) {
  if (batch.batch < 1 || batch.sequence < 1 ||
      static_cast<int64_t>(batch.tokens.size()) != batch.batch * batch.sequence) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch.batch, " x ",
                                                   batch.sequence, " tokens cannot hold ",
                                                   batch.tokens.size(), " of them"));
  }
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const int32_t token = batch.tokens[i];
    if (token >= 0 && token < vocabulary) continue;
    if (allow_ignored && token == kernels::kIgnoredTarget) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " at position ", i % batch.sequence, " of sequence ",
                     i / batch.sequence, " is outside the vocabulary of ", vocabulary,
                     "; was the data made with another tokenizer?"));
  }
  return absl::OkStatus();
}

Embedding::Embedding(const Scope& scope, Options options)
    : tokens_((scope / "wte")
                  .Declare({.name = "weight",
                            .shape = {options.vocabulary, options.width},
                            .initializer = Initializer::Normal(options.initial_std),
                            .weight_decay = true})),
      positions_(options.context == 0
                     ? nullptr
                     : &(scope / "wpe")
                            .Declare({.name = "weight",
                                      .shape = {options.context, options.width},
                                      .initializer = Initializer::Normal(options.initial_std),
                                      .weight_decay = true})) {}

Activation Embedding::Forward(Tape& tape, const TokenBatch& batch, int64_t first_position) const {
  if (positions_ != nullptr && first_position + batch.sequence > positions_->shape()[0]) {
    return tape.Refuse(
        absl::StrCat(positions_->name(), ": a sequence of ", first_position + batch.sequence,
                     " tokens is longer than the context of ", positions_->shape()[0]));
  }
  // A device without elements has nothing to read.
  if (tape.pool().device().has_elements()) {
    if (const absl::Status fit = ValidateTokens(batch, tokens_.shape()[0]); !fit.ok()) {
      return tape.Refuse(absl::StrCat(tokens_.name(), ": ", fit.message()));
    }
  }
  const kernels::EmbeddingShape shape = {.batch = batch.batch,
                                         .sequence = batch.sequence,
                                         .width = tokens_.shape()[1],
                                         .first_position = first_position};
  Tensor y = tape.pool().Allocate(tokens_.dtype(), {shape.batch, shape.sequence, shape.width});
  const internal::DeviceIds ids = tape.Bring(batch.tokens);
  const Tensor& table = tape.Use(tokens_);
  const Tensor positions = positions_ == nullptr ? Tensor() : tape.Use(*positions_);
  tape.operations(y.dtype()).embedding_forward(tape.queue(), shape, ids.data(), table, positions,
                                               y);
  if (!Learns(&tokens_) && !Learns(positions_)) return {.value = y};
  const auto weight_gradient = [shape, &table = tokens_, positions = positions_, ids](
                                   Tape& tape, const Tensor& dy) {
    const auto target = [&](Parameter* of) {
      return Learns(of) ? of->BeginSparseGradient(tape.queue()) : Tensor();
    };
    const Tensor to_table = target(&table);
    const Tensor to_positions = target(positions);
    tape.operations(dy.dtype())
        .embedding_gradient(tape.queue(), shape, ids.data(), dy, to_table, to_positions);
  };
  Parameter* const weights[] = {&tokens_, positions_};
  return tape.Record(y, absl::MakeConstSpan(weights).first(positions_ == nullptr ? 1 : 2),
                     NoGradientFunction(), weight_gradient);
}

}  // namespace muster

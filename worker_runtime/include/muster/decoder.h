// A decoder: pre-norm blocks between an embedding and a head, whose parts a value chooses; GPT-2's,
// as they stand (muster/decoder_config.h).
//
//   ParameterStore store;
//   const DecoderConfig config = {.layers = 6, .heads = 6, .hidden_size = 384};
//   MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> model, Decoder::Create(config, store));
//   store.BindToOwnBuffers();
//   store.Initialize(seed);
//   Tape tape(pool);
//   Loss loss = model->ComputeLoss(tape, batch, targets);
//   tape.Backward(loss.output);
//
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3;
//         Touvron et al., "LLaMA", 2023, section 2.2
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/decoder_config.h"
#include "muster/layers.h"
#include "muster/low_rank.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/tape.h"

namespace muster {

// x + attention(norm(x)), then x + mlp(norm(x)). Declares "ln_1", "attn.c_attn" (queries, keys and
// values in one), "attn.q_norm" and "attn.k_norm" where heads are normed, "attn.c_proj", "ln_2",
// "mlp.c_fc" (of a SwiGLU gates, then what they let through) and "mlp.c_proj".
class DecoderBlock final : public Layer {
 public:
  DecoderBlock(const Scope& scope, const DecoderConfig& config,
               const DecoderAdapters& adapters = {});
  Activation Forward(Tape& tape, const Activation& x) const override;
  // Serves text that grows token by token; see CausalAttention::ForwardCached.
  Activation ForwardCached(Tape& tape, const Activation& x, KeyValueCache& cache) const;

 private:
  Activation Mlp(Tape& tape, const Activation& x) const;

  Activation Qkv(Tape& tape, const Activation& x) const;

  const int64_t context_;
  const Nonlinearity nonlinearity_;
  const double residual_;  // what is added to the residual is multiplied by it
  Norm norm1_;
  AdaptedLinear qkv_;
  std::unique_ptr<const HeadNorms> head_norms_;  // null: there are none
  CausalAttention attention_;
  AdaptedLinear projection_;
  Norm norm2_;
  AdaptedLinear widen_;
  AdaptedLinear narrow_;
};

// The whole model, and its pieces for those who cut it (pipeline stages, units that are gathered
// apart).
//
// Threads: as layers.
class Decoder {
 public:
  // Declares the parameters in `store`, which must outlive the model: the embedding, each block,
  // and the final norm are units. With `adapters` all parameters but theirs are frozen. Tensor
  // ranks of the store share the matrices of blocks: heads and columns of the MLP.
  //
  // Errors: DecoderConfig::Validate's; kInvalidArgument: the adapters' rank or pattern is of no use
  //         (names what the pattern fits that is no matrix of a block), or tensor ranks do not
  //         divide heads or MLP (says what would).
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const DecoderConfig& config,
                                                         ParameterStore& store,
                                                         const DecoderAdapters& adapters = {});

  const DecoderConfig& config() const { return config_; }

  // Ids in [0, vocabulary) (ValidateTokens), sequence <= context. Logits [batch, sequence,
  // vocabulary].
  Activation Forward(Tape& tape, const TokenBatch& batch) const;
  // `targets` [batch * sequence], -1 to leave a position out.
  Loss ComputeLoss(Tape& tape, const TokenBatch& batch, absl::Span<const int32_t> targets) const;

  // The same piece by piece: for an engine that may cut the model. It uses this model, which
  // outlives it.
  UnitModel Units() const;

  // Embeds tokens as the first block takes them.
  Activation Embed(Tape& tape, const TokenBatch& batch, int64_t first_position = 0) const;
  absl::Span<const std::unique_ptr<DecoderBlock>> blocks() const { return blocks_; }
  Activation Head(Tape& tape, const Activation& x) const;  // final norm and logits
  // CrossEntropy(Head(x)), as LmHeadLoss.
  Loss HeadLoss(Tape& tape, const Activation& x, absl::Span<const int32_t> targets) const;

 private:
  Decoder(const DecoderConfig& config, ParameterStore& store, const DecoderAdapters& adapters);
  // Blocks [first, end), of which the tape may want some to be computed again.
  Activation ForwardBlocks(Tape& tape, Activation x, UnitRange blocks) const;
  Activation FinalNorm(Tape& tape, const Activation& x) const;
  Parameter& head_table() const { return head_ == nullptr ? embedding_.token_table() : *head_; }

  const DecoderConfig config_;
  const Embedding embedding_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::unique_ptr<Norm> final_norm_;  // declared after the blocks
  Parameter* head_ = nullptr;         // null: it is tied
};

struct GenerateOptions {
  int64_t num_tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  uint64_t seed = 0;
};

// Continues `prompt`, which must not be empty, and returns the new tokens. Past the context the
// oldest half is forgotten. Errors: kInvalidArgument: an empty prompt, an id outside the
// vocabulary, a negative temperature or count.
absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& model, TensorPool& pool,
                                              absl::Span<const int32_t> prompt,
                                              const GenerateOptions& options);

}  // namespace muster

// GPT-2: pre-norm blocks, learned positions, head tied to the token table.
//
//   ParameterStore store;
//   const DecoderConfig config = {.layers = 6, .heads = 6, .hidden_size = 384};
//   MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> gpt, Decoder::Create(config, store));
//   store.BindToOwnBuffers();
//   store.Initialize(seed);
//   Tape tape(pool);
//   Loss loss = gpt->ComputeLoss(tape, batch, targets);
//   tape.Backward(loss.output);
//
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3
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

// x + attention(norm(x)), then x + mlp(norm(x)).
class DecoderBlock final : public Layer {
 public:
  DecoderBlock(const Scope& scope, const DecoderConfig& config,
               const DecoderAdapters& adapters = {});
  Activation Forward(Tape& tape, const Activation& x) const override;
  // Serves text that grows token by token; see CausalAttention::ForwardCached.
  Activation ForwardCached(Tape& tape, const Activation& x, KeyValueCache& cache) const;

 private:
  Activation Mlp(Tape& tape, const Activation& x) const;

  const int64_t context_;
  LayerNorm norm1_;
  AdaptedLinear qkv_;
  CausalAttention attention_;
  AdaptedLinear projection_;
  LayerNorm norm2_;
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
  // and the final norm are units. With `adapters` all parameters but theirs are frozen.
  //
  // Errors: DecoderConfig::Validate's; kInvalidArgument: the adapters' rank or pattern is of no use
  //         (names what the pattern fits that is no matrix of a block).
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

  const Embedding& embedding() const { return embedding_; }
  absl::Span<const std::unique_ptr<DecoderBlock>> blocks() const { return blocks_; }
  Activation Head(Tape& tape, const Activation& x) const;  // final norm and logits
  // CrossEntropy(Head(x)), as TiedHeadLoss.
  Loss HeadLoss(Tape& tape, const Activation& x, absl::Span<const int32_t> targets) const;

 private:
  Decoder(const DecoderConfig& config, ParameterStore& store, const DecoderAdapters& adapters);
  // Blocks [first, end), of which the tape may want some to be computed again.
  Activation ForwardBlocks(Tape& tape, Activation x, UnitRange blocks) const;

  const DecoderConfig config_;
  const Embedding embedding_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::unique_ptr<LayerNorm> final_norm_;  // declared after the blocks
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

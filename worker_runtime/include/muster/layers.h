// The layers of a transformer, on a tape.
//
// A layer declares its parameters when it is made and computes when it is called; it holds no
// activations, so one model serves several tapes. Arrays are [rows, width] or [batch, sequence,
// width]; layers that work on rows take any of them. Types follow the parameters: float for
// training, double for checks.
//
// Errors: shapes that do not fit fail the forward pass with a sentence that names the layer
//         (Tape::Refuse), and so do token ids and targets outside the vocabulary (ValidateTokens).
// Threads: Forward is const and may run in several threads with a tape each.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/decoder_parts.h"
#include "muster/parameter.h"
#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster {

// Token ids, [batch, sequence], row by row. Not owned: the ids must live until the tape has been
// replayed or cleared.
struct TokenBatch {
  absl::Span<const int32_t> tokens;
  int64_t batch = 0;
  int64_t sequence = 0;
};

// kInvalidArgument naming the first id outside [0, vocabulary), or if the sizes do not fit. With
// `allow_ignored` -1 passes.
absl::Status ValidateTokens(const TokenBatch& batch, int64_t vocabulary,
                            bool allow_ignored = false);

// The instruction set that the layers' arithmetic uses on this machine: "avx512", "avx2",
// "baseline".
std::string InstructionSet();

// A map from activation to activation, for models that are lists of layers.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual Activation Forward(Tape& tape, const Activation& x) const = 0;
};

// f(pre), and the `pre` that its gradient needs.
struct Activated {
  Activation pre;
  Tensor value;
  Nonlinearity kind = Nonlinearity::kGelu;
};

// y = x W^T [+ b]
//
// Where the store has tensor ranks, a layer that is cut by its outputs makes of the whole x a part
// of y, which one that is cut by its inputs takes as its x, to make the whole y again: adjacent
// layers that are cut in turn exchange one activation in a forward pass and one in a backward pass.
class Linear final : public Layer {
 public:
  enum class Cut { kNone, kOutputs, kInputs };
  struct Options {
    int64_t inputs = 0;
    int64_t outputs = 0;
    double initial_std = 0.02;  // standard deviation of the initial weights
    bool bias = true;
    Cut cut = Cut::kNone;
    std::vector<int64_t> sections = {};  // of outputs that are cut: ParameterCut::sections
  };
  // Declares "weight" [outputs, inputs] and "bias" [outputs]; sizes of the whole layer.
  Linear(const Scope& scope, Options options);

  Activation Forward(Tape& tape, const Activation& x) const override;
  // residual + x W^T + b, without a pass of its own for either sum.
  Activation ForwardOnto(Tape& tape, const Activation& residual, const Activation& x) const;
  // f(x W^T + b); a GELU without passes of its own for it and the sum where the device can.
  Activated ForwardActivated(Tape& tape, const Activation& x, Nonlinearity kind) const;
  // residual + f(pre) W^T + b. Where the tape is to recompute selectively, f(pre) is not kept but
  // computed again in the backward pass.
  Activation ForwardOntoActivated(Tape& tape, const Activation& residual,
                                  const Activated& in) const;

 private:
  Tensor MakeOutput(Tape& tape, const Tensor& x) const;
  Tensor MakeSum(Tape& tape, const Tensor& residual, const Tensor& x) const;
  void AddProduct(Tape& tape, const Tensor& residual, const Tensor& x, const Tensor& y) const;
  Tensor UseBias(Tape& tape) const;
  // Whether tensor ranks make parts of a sum, to which one of them brings what is added beside it.
  bool AddsUp() const;
  bool BringsRest() const;
  // `x`, of whose gradient each tensor rank makes a part.
  Activation Shared(Tape& tape, const Activation& x) const;
  template <typename InputGradient, typename WeightGradient>
  Activation RecordWith(Tape& tape, const Tensor& y, const InputGradient& input_gradient,
                        const WeightGradient& weight_gradient) const;
  Activation RecordProduct(Tape& tape, const Tensor& y, const Activation& residual,
                           const Activation& x) const;

  const Cut cut_;
  Parameter& weight_;      // of the store, which outlives the model
  Parameter* const bias_;  // null: there is none
};

// Normalises over the last dimension, then scales, and shifts if it is a layer norm. Declares
// "weight" [width] and, for kLayer, "bias" [width].
class Norm final : public Layer {
 public:
  Norm(const Scope& scope, int64_t width, NormKind kind = NormKind::kLayer, double epsilon = 1e-5);
  Activation Forward(Tape& tape, const Activation& x) const override;

 private:
  Parameter& weight_;
  Parameter* const bias_;  // null: kRms
  const double epsilon_;
};

// Token table plus position table: [batch, sequence] ids to [batch, sequence, width].
class Embedding {
 public:
  struct Options {
    int64_t vocabulary = 0;
    int64_t context = 0;  // 0: no positions
    int64_t width = 0;
    double initial_std = 0.02;
  };
  // Declares "wte.weight" [vocabulary, width] and "wpe.weight" [context, width].
  Embedding(const Scope& scope, Options options);

  // batch.sequence + first_position must not exceed the context.
  Activation Forward(Tape& tape, const TokenBatch& batch, int64_t first_position = 0) const;

  Parameter& token_table() const { return tokens_; }

 private:
  Parameter& tokens_;
  Parameter* const positions_;  // null: there are none
};

// Keys and values of the text so far, so that each further token costs one row instead of the whole
// text.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  int64_t length() const { return length_; }

 private:
  friend class CausalAttention;
  Tensor rows_;  // [context, qkv_width], the rows of qkv; a query is of no use after its turn
  int64_t length_ = 0;
};

// RMS norms of each head of queries and of keys, as Qwen 3 has them. Declares "q_norm.weight" and
// "k_norm.weight" [head_size]. Tensor ranks have some of the heads each, and add up the gradients.
class HeadNorms final : public Layer {
 public:
  struct Options {
    int64_t heads = 0;
    int64_t kv_heads = 0;
    int64_t head_size = 0;
    double epsilon = 1e-6;
  };
  HeadNorms(const Scope& scope, const Options& options);
  // qkv as CausalAttention takes it, to the same shape.
  Activation Forward(Tape& tape, const Activation& qkv) const override;

 private:
  const Options options_;
  Parameter& queries_;
  Parameter& keys_;
};

// Softmax attention of each position to itself and those before it. No parameters.
class CausalAttention final : public Layer {
 public:
  struct Options {
    int64_t heads = 1;
    int64_t kv_heads = 0;    // each serves heads / kv_heads of them; 0: as many as heads
    double score_scale = 0;  // 0: 1 / sqrt(head size)
    // Radians per position by which elements i and i + head size / 2 of queries and keys are turned
    // (RotaryPositions::Frequencies). [head size / 2]; empty: not at all
    std::vector<double> rotary = {};
  };
  explicit CausalAttention(Options options) : options_(std::move(options)) {}

  // qkv [batch, sequence, (heads + 2 * kv_heads) * head size], in a row all queries, then all keys,
  // then all values, to [batch, sequence, heads * head size]. Rotary positions are written over
  // qkv, so nobody else may read it.
  Activation Forward(Tape& tape, const Activation& qkv) const override;

  // Inference: one sequence, whose new rows see the cached ones, which they then join. At most
  // `context` rows in all.
  Tensor ForwardCached(Tape& tape, const Tensor& qkv, KeyValueCache& cache, int64_t context) const;

 private:
  const Options options_;
};

// A nonlinearity for itself; kSwiGlu halves the last dimension.
class Nonlinear final : public Layer {
 public:
  explicit Nonlinear(Nonlinearity kind) : kind_(kind) {}
  Activation Forward(Tape& tape, const Activation& x) const override;
  // A new tensor, on no record.
  Tensor Of(Tape& tape, const Tensor& pre) const;

 private:
  const Nonlinearity kind_;
};

// a + b
Activation Add(Tape& tape, const Activation& a, const Activation& b);
// factor * x; x itself for 1.
Activation Scale(Tape& tape, const Activation& x, double factor);

// x T^T with a table [vocabulary, width], which may be the embedding's: [.., width] to
// [.., vocabulary].
Activation LmHead(Tape& tape, const Activation& x, Parameter& table);

// Summed, not averaged, so that ranks and micro-batches can be weighed by their tokens.
struct Loss {
  double sum = 0;          // where the host reads the device's memory; elsewhere it is in `total`
  int64_t num_tokens = 0;  // targets that counted
  Activation output;       // for Tape::Backward; its gradient is that of `sum`
  Tensor total;            // [1] of f64; empty where `sum` is known

  double mean() const { return num_tokens == 0 ? 0 : sum / static_cast<double>(num_tokens); }
};

// Softmax cross-entropy of each row; targets of -1 are left out. The gradient is computed along
// with the loss, over the logits' memory if nobody else holds it: move them in.
//
// Shapes: logits [.., vocabulary]; targets one per row, each -1 or in [0, vocabulary).
Loss CrossEntropy(Tape& tape, Activation logits, absl::Span<const int32_t> targets);

// CrossEntropy(LmHead(x, table)), some rows after others on a device that never holds all logits
// (cuda). The gradients are then computed along with the loss, or in f16 along with its gradient.
Loss LmHeadLoss(Tape& tape, const Activation& x, Parameter& table,
                absl::Span<const int32_t> targets);

}  // namespace muster

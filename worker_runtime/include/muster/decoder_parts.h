// What a decoder is made of: kinds of its parts, and their numbers that are no sizes.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace muster {

// Positions by turning pairs of numbers of queries and keys.
//
// Source: Su et al., "Enhanced Transformer with Rotary Position Embedding", 2021; the scalings are
//         those that config.json of transformers calls rope_scaling "linear" and "llama3".
struct RotaryPositions {
  enum class Scaling { kNone, kLinear, kLlama3 };

  double base = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;  // by which frequencies are divided, those of kLlama3 only where they are low
  // kLlama3: waves of at least original_context / low_factor tokens are low ones, those of at most
  // original_context / high_factor stay as they are, and what lies between goes over smoothly.
  double low_factor = 1;
  double high_factor = 4;
  int64_t original_context = 8192;
  // Tokens that the model was made for; longer sequences are refused. 0: nothing is known.
  int64_t context_max = 0;

  friend bool operator==(const RotaryPositions&, const RotaryPositions&) = default;

  // Radians per position, by which element i of a head and element i + head_size / 2 turn.
  // [head_size / 2]
  std::vector<double> Frequencies(int64_t head_size) const;
};

enum class NormKind {
  kLayer,  // about the mean
  kRms,    // Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019
};

// What stands between the two products of an MLP.
enum class Nonlinearity {
  kGelu,    // GPT-2's tanh form
  kSwiGlu,  // of [.., 2 * width], gates and then what they let through: silu(gate) * up
};

// The parts of a decoder. As they stand, they are those of a GPT-2.
struct DecoderParts {
  enum class Biases { kAll, kQkv, kNone };
  // What Granite multiplies by: embeddings, what each block adds, scores (0: 1 / sqrt(head size)),
  // and logits.
  struct Multipliers {
    double embedding = 1;
    double residual = 1;
    double scores = 0;
    double logits = 1;
    friend bool operator==(const Multipliers&, const Multipliers&) = default;
  };

  NormKind norm = NormKind::kLayer;
  double norm_epsilon = 1e-5;
  std::optional<RotaryPositions> rotary = {};  // nothing: a table of learned positions
  int64_t positions = 0;                       // rows of that table; 0: as many as the context
  Nonlinearity mlp = Nonlinearity::kGelu;
  Biases biases = Biases::kAll;
  bool head_norms = false;  // RMS norms of each head of queries and keys
  bool tied = true;         // the head uses the table of embeddings
  Multipliers multipliers = {};

  friend bool operator==(const DecoderParts&, const DecoderParts&) = default;
};

}  // namespace muster

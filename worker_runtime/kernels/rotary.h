// Rotary position embedding: each head of a line is turned by its position, a pair of elements by
// an angle of its own.
//
//   angle = position * of_pair[i],  a = x[i],  b = x[i + head_width / 2]
//   x[i] = a * cos(angle) - b * sin(angle)
//   x[i + head_width / 2] = b * cos(angle) + a * sin(angle)
//
// Angles, cosines and sines are computed in double, and then rounded to T.
// Source: Su et al., "Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.2;
// pairs as Llama has them in transformers ("rotate half"), where the paper has neighbours
#pragma once

#include <array>
#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

// The widest heads have so many.
inline constexpr int64_t kRotaryPairsMax = 128;

// Radians for each position, of the first head_width / 2 pairs.
struct RotaryFrequencies {
  std::array<double, kRotaryPairsMax> of_pair = {};
};

struct RotaryShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;  // the first so many of each line: those of queries and keys
  int64_t head_width = 0;
  int64_t line = 0;  // elements of a line
  int64_t first_position = 0;
  bool inverse = false;  // turns back: the gradient's way
};

// Whether the kernels can: heads of whole pairs, that are in the line.
constexpr bool CanRotate(const RotaryShape& shape) {
  return shape.head_width % 2 == 0 && shape.head_width / 2 <= kRotaryPairsMax &&
         shape.heads * shape.head_width <= shape.line;
}

// Shapes:  x [batch, sequence, line], in place; frequencies [head_width / 2].
// Bits:    a pair's depend on itself and its position alone, and are the same on every processor:
//          cos and sin are polynomials of ours.
// Error:   of cos and sin below 3e-16, for angles up to 2^32.
// Cost:    a cos and a sin for each position and pair, whatever the batch and the heads.
// Threads: thread-safe.
template <typename T>
struct RotaryKernels {
  void (*rotate)(RotaryShape shape, const double* frequencies, T* x);
};

template <Isa kIsa, typename T>
RotaryKernels<T> MakeRotary();

template <typename T>
const RotaryKernels<T>& Rotary() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeRotary<isa(), T>(); });
  return table;
}

}  // namespace muster::kernels

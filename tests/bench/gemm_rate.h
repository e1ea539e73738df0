// What the products of a GPT's training step cost at least on this machine.
#pragma once

#include <cstdint>

#include "muster/decoder_config.h"

namespace muster::bench {

// Floating point operations of fp32 products per second that this thread is given a processor, in
// the shape of the GPT's largest layer ([rows, hidden_size] by [hidden_size, 4 * hidden_size]): the
// median of several runs of some ten milliseconds each. Ranks that measure at the same time see
// each other, as they do in a step.
double MeasureGemmRate(const DecoderConfig& config, int64_t rows);

// Floating point operations of the products of one forward and backward pass over `rows` tokens: 6
// per weight of a linear layer and token, and attention's two products over the causal half of the
// context. No recomputation.
double StepFlops(const DecoderConfig& config, int64_t rows);

}  // namespace muster::bench

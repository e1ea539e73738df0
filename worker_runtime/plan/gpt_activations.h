// The most memory that one micro-batch of a GPT takes on the tape (muster/tape.h), apart from
// parameters and their gradients.
//
// Counted from what the layers of nn/ keep for the backward pass. With R = batch * sequence rows
// and U = R * width elements, a block keeps 16 U (its input, both norms, queries keys and values,
// attention, the middle of the block, and the wide part of the MLP before and after GELU) and
// 2 R * (2 + heads) of statistics. The peak is one of three moments:
//
//   head       after the forward pass: all blocks, both sides of the last norm, the logits, and the
//              gradient of the head's input
//   mlp        entering the last block: all blocks, the gradient of its output and of the wide part
//   attention  in the last block: what is left of it, the gradients of queries, keys and values,
//              and scores of one head
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "muster/dtype.h"
#include "muster/gpt_config.h"

namespace muster::plan {

struct MicroBatch {
  int64_t batch = 0;
  int64_t sequence = 0;
  DType dtype = DType::kF32;
};

// Bytes in use at the peak of a forward and backward pass whose loss has the gradient 1 (another
// one takes a second array of logits). The sizes are valid, and their product fits 2^60 bytes.
int64_t GptActivationBytes(const GptConfig& config, const MicroBatch& micro_batch);

// The same, roughly, for sizes whose product may not fit.
double EstimateGptActivationBytes(const GptConfig& config, const MicroBatch& micro_batch);

}  // namespace muster::plan

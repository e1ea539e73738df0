// What a device could do at most, and what a token takes of it: the share is a training's MFU.
//
// Threads: pure.
#pragma once

#include "absl/strings/string_view.h"
#include "muster/dtype.h"
#include "muster/gpt_config.h"

namespace muster::train {

// Operations a second of dense products in that type, of a GPU by the name that CUDA gives it; 0:
// not known. Source: NVIDIA's data sheets, without sparsity; sums in f32
double PeakOperations(absl::string_view gpu, DType dtype);

// Forward and backward: 6 for each parameter, and the products of causal attention.
// Source: llm.c, llmc/mfu.h: 6 N + 6 L C T
double OperationsPerToken(const GptConfig& model);

}  // namespace muster::train

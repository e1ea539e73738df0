// Causal self-attention as graphs of cuDNN.
//
// Forward:  S = scale * Q K^T, masked to keys at or before the query; P = softmax(S) by row,
//           O = P V; L = log(sum(exp(S))) by row, which is kept.
// Backward: P = exp(S - L), D = the sums of dO * O by row; dV = P^T dO, dS = scale * P * (dO V^T -
//           D), dQ = dS K, dK = dS^T Q.
//
// Where heads of Q share those of K and V, products repeat the latter, and dK and dV are sums over
// each group of what its heads say, which the engine keeps in between, in 16 bits.
//
// Q, K and V lie in rows of one array, as do their gradients (kernels/attention.h): strides say so,
// and nothing is copied. S, P and dS are never in memory, but for dS in gradients with the same
// bits in every run: else dQ is added to in memory, in f32, in the order of arrival. Source:
// NVIDIA's cudnn-frontend 1.32, for which graphs the engines know; Dao et al., "FlashAttention",
// 2022
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cudnn_engines.h"
#include "worker_runtime/cuda/cudnn_graph.h"

namespace muster::cudnn {

// What arguments are bound to.
enum AttentionArray : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLogSums,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kRowSums,    // D, to work in
  kQuerySums,  // dQ in f32, to work in, unless the bits are the same in every run
  kScale,      // scalars
  kMasked,
  kOne,
};

enum class Pass { kForward, kBackward };

// Errors: kUnimplemented: of a shape or type that cuDNN has not, without asking it; and its words.
absl::StatusOr<OperationGraph> AttentionGraph(const Library& library, Pass pass,
                                              const LibraryAttention& attention,
                                              cudnnHandle_t handle);

// Within the memory of kernels/library_attention.h.
EngineNeeds NeedsOf(Pass pass, const LibraryAttention& attention);

}  // namespace muster::cudnn

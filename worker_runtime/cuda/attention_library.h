// Attention on a GPU in bf16 and f16 by a library: cuDNN's (cudnn_attention.cc), or for tests
// without one the host's (tests/support/emulation/emulated_attention.h). Our own kernels need none
// of it.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "muster/dtype.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster {

// Both passes of a layer.
struct LibraryAttention {
  kernels::AttentionShape shape;  // of all queries
  DType type = DType::kBf16;      // or f16
  bool same_bits = false;         // gradients have the same bits in every run
  friend auto operator<=>(const LibraryAttention&, const LibraryAttention&) = default;
};

// Arrays in memory of the device; they are laid out as kernels/attention.h has them.
struct AttentionForwardArrays {
  const void* qkv = nullptr;
  void* out = nullptr;
  float* log_sums =
      nullptr;  // [batch, heads, sequence]: the logarithm of the sum of exp(score) of each row
  void* workspace = nullptr;  // AttentionLibrary::WorkspaceOf
};
struct AttentionBackwardArrays {
  const void* qkv = nullptr;
  const void* out = nullptr;
  const void* dout = nullptr;
  const float* log_sums = nullptr;
  void* dqkv = nullptr;
  void* workspace = nullptr;  // AttentionLibrary::WorkspaceOf
};

// What plans of memory count with.
kernels::AttentionWorkspace PlannedWorkspace(const LibraryAttention& attention);

// What cuDNN has not, whatever its engines say: head sizes in bytes must be multiples of 16, and a
// row of one number has no gradient there. Source: cudnn-frontend 1.32
//
// Errors: kUnimplemented.
inline absl::Status CheckCudnnHas(const LibraryAttention& attention) {
  constexpr int64_t kHeadWidthMultiple = 8, kShortestSequence = 2;
  const kernels::AttentionShape& shape = attention.shape;
  if (attention.type != DType::kBf16 && attention.type != DType::kF16) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN computes attention in bf16 and f16, not in ", ToString(attention.type)));
  }
  if (shape.head_width % kHeadWidthMultiple != 0) {
    return absl::UnimplementedError(absl::StrCat("cuDNN's attention is of heads whose size is a ",
                                                 "multiple of ", kHeadWidthMultiple, ", not ",
                                                 shape.head_width));
  }
  if (shape.heads % shape.key_heads() != 0) {
    return absl::UnimplementedError(absl::StrCat("cuDNN's attention is of heads in equal groups, ",
                                                 "and ", shape.heads, " heads share the keys of ",
                                                 shape.key_heads()));
  }
  if (shape.sequence < kShortestSequence || shape.first_query != 0 || shape.of_cache) {
    return absl::UnimplementedError("cuDNN's attention is of whole sequences of 2 tokens at least");
  }
  return absl::OkStatus();
}

// Threads: safe, on one stream at a time.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  virtual std::string name() const = 0;  // as NameCudnn
  // Whether it has both passes; looked up once, which may take seconds, and remembered. Where it
  // has none that works in what is planned, one that works in more is better than none.
  //
  // Errors: kUnimplemented: it has them not, and why. Its own.
  virtual absl::Status Prepare(const LibraryAttention& attention) = 0;
  // What it works in, once it is prepared: as is planned, or more.
  virtual kernels::AttentionWorkspace WorkspaceOf(const LibraryAttention& attention) = 0;
  // Put a pass on the stream, once it is prepared.
  virtual absl::Status Forward(CudaStream stream, const LibraryAttention& attention,
                               const AttentionForwardArrays& arrays) = 0;
  virtual absl::Status Backward(CudaStream stream, const LibraryAttention& attention,
                                const AttentionBackwardArrays& arrays) = 0;
};

// `cuda` outlives it.
//
// Errors: kUnavailable: cuDNN cannot be loaded, is too old, or was not there when this program was
// built.
absl::StatusOr<std::unique_ptr<AttentionLibrary>> MakeCudnnAttention(CudaApi& cuda);

// "cuDNN 9.19.0 (/usr/local/cuda/lib64/libcudnn.so.9)": the file that is opened for it.
//
// Errors: as above.
absl::StatusOr<std::string> NameCudnn();

}  // namespace muster

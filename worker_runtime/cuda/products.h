// Products of matrices on a GPU: cuBLASLt's (cublaslt_products.cc), or for tests without one the host's
// (tests/support/emulation/emulated_products.h).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/dtype.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {

// c = op(a) op(b) [+ c], row-major and dense: op(a) [m, k], op(b) [k, n], in memory of the device.
struct CudaProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  DType type = DType::kF32;    // of a and b: f32 or bf16
  DType result = DType::kF32;  // of c: that, or f32
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

// Bits:    sums in f32, rounded once; f32 is multiplied as f32. The same arguments give the same bits on the
//          same kind of GPU.
// Threads: safe, on one stream at a time.
class Products {
 public:
  virtual ~Products() = default;
  // Puts it on the stream.
  virtual absl::Status Multiply(CudaStream stream, const CudaProduct& product) = 0;
};

// `cuda` outlives it.
//
// Errors: kUnavailable: cuBLASLt cannot be loaded.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasLtProducts(CudaApi& cuda);

}  // namespace muster

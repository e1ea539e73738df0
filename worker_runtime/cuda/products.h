// Products of matrices on a GPU: cuBLASLt's (cublaslt_products.cc), or for tests without one the
// host's (tests/support/emulation/emulated_products.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/dtype.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {

// What is done on the way, before numbers are rounded, to p = op(a) op(b) [+ addend].
enum class Epilogue {
  kNone,          // c = p
  kBias,          // c = p + bias, bias [n]
  kBiasGelu,      // pre = p + bias, c = gelu(pre); the tanh form
  kGeluGradient,  // c = p * gelu'(pre)
  kBiasGradient,  // c = p, bias = the sums of op(a) over k, bias [m]; a is transposed
};

// Row-major and dense: op(a) [m, k], op(b) [k, n], c [m, n], in memory of the device.
struct CudaProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType type = DType::kF32;    // of a and b: f32, bf16 or f16
  DType result = DType::kF32;  // of all others: that, or f32
  const void* a = nullptr;
  const void* b = nullptr;
  const void* addend = nullptr;  // [m, n]; may be c, and null: nothing is added
  void* c = nullptr;
  Epilogue epilogue = Epilogue::kNone;
  void* bias = nullptr;  // read, or the gradient that is written
  void* pre = nullptr;   // [m, n], written or read
};

// Bits:    sums in f32, rounded once; f32 is multiplied as f32. The same arguments give the same
//          bits on the same kind of GPU.
// Threads: safe, on one stream at a time.
class Products {
 public:
  virtual ~Products() = default;
  // Whether it can be done in one pass; without an epilogue it can.
  virtual bool HasInOnePass(const CudaProduct& product) = 0;
  // Puts it on the stream.
  //
  // Errors: kUnimplemented: it cannot be done so after all, and from now on HasInOnePass says so.
  // Its own.
  virtual absl::Status Multiply(CudaStream stream, const CudaProduct& product) = 0;
};

// `cuda` outlives it.
//
// Errors: kUnavailable: cuBLASLt cannot be loaded.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasLtProducts(CudaApi& cuda);

// "cuBLASLt (/usr/local/cuda/lib64/libcublasLt.so.13)": the file that is opened for it.
//
// Errors: as above.
absl::StatusOr<std::string> NameCublasLt();

}  // namespace muster

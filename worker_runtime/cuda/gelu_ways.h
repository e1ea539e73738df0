// Which way of GELU beside a product is the quicker on this GPU, by shape: on the product's way, or
// in a pass of its own.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/products.h"

namespace muster {

// Threads: safe.
class GeluWays {
 public:
  // Times both, the first time that a shape is asked for: each runs once before, since the first
  // launch of a kernel loads it, and then a few times in turn. `in_one_pass` returns whether it was
  // put on the stream.
  //
  // Errors: CudaApi's.
  absl::Status Learn(CudaApi& cuda, CudaStream stream, const CudaProduct& product,
                     absl::FunctionRef<bool()> in_one_pass, absl::FunctionRef<void()> in_passes);

  // Whether passes of their own were the quicker; no, of a shape that is not known.
  bool PrefersPasses(const CudaProduct& product) const;

 private:
  using Shape = std::tuple<int64_t, int64_t, int64_t, bool, bool, DType, DType, Epilogue>;
  static Shape ShapeOf(const CudaProduct& product);
  std::optional<bool> Known(const CudaProduct& product) const;

  mutable base::Mutex mu_;
  std::map<Shape, bool> prefers_passes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster

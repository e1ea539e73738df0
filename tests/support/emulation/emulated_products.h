// Products of matrices on an emulated GPU: the host's, when the stream comes to them.
#pragma once

#include "worker_runtime/cuda/products.h"

namespace muster::testing {

// Threads: safe.
class EmulatedProducts final : public Products {
 public:
  absl::Status Multiply(CudaStream stream, const CudaProduct& product) override;
};

}  // namespace muster::testing

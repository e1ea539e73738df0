// Products of matrices on an emulated GPU: the host's, when the stream comes to them.
#pragma once

#include "worker_runtime/cuda/products.h"

namespace muster::testing {

// Threads: safe.
class EmulatedProducts final : public Products {
 public:
  // Whether epilogues are done on the way; else they are left to the caller, who is told at once or
  // when it tries. A slow GELU takes longer than passes of its own.
  enum class Epilogues { kInOnePass, kSlowGelu, kNone, kRefusedWhenTried };
  explicit EmulatedProducts(Epilogues epilogues = Epilogues::kInOnePass) : epilogues_(epilogues) {}

  bool HasInOnePass(const CudaProduct& product) override {
    return product.epilogue == Epilogue::kNone || epilogues_ != Epilogues::kNone;
  }
  absl::Status Multiply(CudaStream stream, const CudaProduct& product) override;

 private:
  const Epilogues epilogues_;
};

}  // namespace muster::testing

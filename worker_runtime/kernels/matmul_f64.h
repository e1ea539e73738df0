// The product in double behind Matmul; see matmul.h.
#pragma once

#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/matmul.h"

namespace muster::kernels {

// `b` must not be transposed.
struct MatmulF64Kernels {
  void (*run)(MatmulShape shape, double alpha, MatmulOperand<double> a, MatmulOperand<double> b,
              MatmulResult<double> c);
};

template <Isa kIsa>
MatmulF64Kernels MakeMatmulF64();

inline const MatmulF64Kernels& MatmulF64() {
  static const auto table = ForIsa(BestIsa(), [](auto isa) { return MakeMatmulF64<isa()>(); });
  return table;
}

}  // namespace muster::kernels

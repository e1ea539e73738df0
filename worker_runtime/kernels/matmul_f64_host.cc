// Products in double: every sum in order of k, with fused multiply-add. The oracle of the others.
#include "worker_runtime/kernels/matmul_f64.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

void Run(MatmulShape shape, double alpha, MatmulOperand<double> a, MatmulOperand<double> b,
         MatmulResult<double> c) {
  const bool transposed = a.transpose == Transpose::kYes;
  const int64_t step = transposed ? a.stride : 1;
  for (int64_t i = 0; i < shape.m; ++i) {
    const double* row = a.data + i * (transposed ? 1 : a.stride);
    double* out = c.data + i * c.stride;
    ForEachPack<double>(shape.n, [&](int64_t j, auto load, auto store) {
      auto sum = Pack<double>::Zero();
      for (int64_t p = 0; p < shape.k; ++p) {
        sum = Fma(Pack<double>::Broadcast(row[p * step]), load(b.data + p * b.stride + j), sum);
      }
      sum = Pack<double>::Broadcast(alpha) * sum;
      if (c.beta != 0) sum = Fma(Pack<double>::Broadcast(c.beta), load(out + j), sum);
      store(sum, out + j);
    });
  }
}

}  // namespace

template <Isa isa>
MatmulF64Kernels MakeMatmulF64() {
  return {.run = &Run};
}
template MatmulF64Kernels MakeMatmulF64<kIsa>();

}  // namespace muster::kernels

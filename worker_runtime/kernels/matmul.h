// Matrix products, row-major:  C = alpha * op(A) * op(B) + beta * C
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/isa.h"

namespace muster::kernels {

enum class Transpose { kNo, kYes };

template <typename T>
struct MatmulOperand {
  const T* data = nullptr;
  int64_t stride = 0;  // elements from one stored row to the next
  Transpose transpose = Transpose::kNo;
};

template <typename T>
struct MatmulResult {
  T* data = nullptr;
  int64_t stride = 0;
  T beta = 0;  // 0: overwritten, whatever it held
};

struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// Shapes:  op(A) [m, k], op(B) [k, n], C [m, n]; C overlaps neither operand.
// Bits:    float by oneDNN in T, in the caller's thread alone whatever OpenMP is set to: the same
//          arguments give the same bits on the same machine, run after run. double: every sum runs
//          over k in order with fused multiply-add, the same bits on every machine.
// Cost:    float within about 5 % of the machine's peak from 64 x 64 x 64 on; measured single-
//          threaded against OpenBLAS 0.3.21 on Zen 3, oneDNN 2.6 was 0-5 % faster on a GPT's large
//          products and 15-40 % faster on the blocks of attention. double is the oracle of tests
//          and parallel modes, and is some ten times slower.
// Threads: thread-safe.
void Matmul(MatmulShape shape, float alpha, MatmulOperand<float> a, MatmulOperand<float> b,
            MatmulResult<float> c);
void Matmul(MatmulShape shape, double alpha, MatmulOperand<double> a, MatmulOperand<double> b,
            MatmulResult<double> c);

}  // namespace muster::kernels

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

// Whether this CPU multiplies tiles of bf16 (AMX), and ONEDNN_MAX_CPU_ISA allows it: then the
// products below are quicker than in float. On an Xeon with AMX, a GPT's took 0.2 to 0.7 of the
// time of float's, where to widen them first takes 0.8 to 1.9; without AMX oneDNN's take 1.7 to 2
// (AVX512_BF16) or 4 (AVX512) times as long as float's.
bool MultipliesTilesOfBf16();

// C = op(A) * op(B) [+ C], with the C where its beta is not 0, of bf16, held as bits; sums in
// float, each number rounded once.
//
// Bits:    those of the machine's kind of CPU, as for float.
// Threads: thread-safe, in the caller's thread alone.
// Errors:  ends the process where oneDNN has no code: without AVX512.
void Matmul(MatmulShape shape, MatmulOperand<uint16_t> a, MatmulOperand<uint16_t> b,
            MatmulResult<uint16_t> c);
void Matmul(MatmulShape shape, MatmulOperand<uint16_t> a, MatmulOperand<uint16_t> b,
            MatmulResult<float> c);

}  // namespace muster::kernels

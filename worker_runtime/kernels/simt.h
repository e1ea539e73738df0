// What kernels use of the device beyond plain C++ and __syncthreads: launches, shared memory, what
// the lanes of a warp tell each other, asynchronous copies and products of tiles. This is the only
// header with CUDA's intrinsics and inline PTX; only `.cu` files include it.
//
// The same kernels run on the host against the twin of this header, lane by lane the same:
// tests/support/emulation/worker_runtime/kernels/simt.h, which says what a wrong use looks like.
// Every lane of a warp calls the functions of warps together, every thread of a block those of
// blocks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "worker_runtime/kernels/half.h"
#include "worker_runtime/kernels/launch.h"

namespace muster::kernels::simt {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
// What a block may have without asking for more.
inline constexpr size_t kPlainSharedBytes = 48 * 1024;

// The only place where kernels are launched.
template <typename... Parameters, typename... Arguments>
LaunchError Launch(void (*kernel)(Parameters...), LaunchShape shape, StreamHandle stream,
                   Arguments... arguments) {
  if (shape.blocks == 0 || shape.blocks_y == 0) return nullptr;
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kPlainSharedBytes) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes));
  }
  if (error == cudaSuccess) {
    const dim3 blocks(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y));
    kernel<<<blocks, shape.threads, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<Parameters>(arguments)...);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// The block's memory, LaunchShape::shared_bytes of it, aligned to 16 bytes. It begins with
// anything.
__device__ inline void* SharedMemory() {
  extern __shared__ uint4 muster_shared_memory[];
  return muster_shared_memory;
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x % kWarpSize); }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x / kWarpSize); }

// Lanes meet: what one wrote to memory before, the others see after.
__device__ inline void SyncWarp() { __syncwarp(); }

// The value of the lane whose number differs in the bits of `mask`.
template <typename T>
__device__ T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}

// Bit i: what lane i said.
__device__ inline unsigned Ballot(bool vote) { return __ballot_sync(kAllLanes, vote); }
__device__ inline int CountBits(unsigned bits) { return __popc(bits); }

// Whether any thread of the block said so. A barrier.
__device__ inline bool AnyInBlock(bool vote) { return __syncthreads_or(vote) != 0; }

// Copies 16 bytes from global to shared memory (both aligned to 16) without waiting, or fills them
// with zeros if not `valid`, and then reads nothing. The thread that copied may read them after
// FinishCopies, the others after a barrier that follows it.
__device__ inline void StartCopy(void* to, const void* from, bool valid) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void FinishCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Conversions round to nearest, ties to even; what is not a number stays so, with bits of the
// device's choice.
__device__ inline float FloatOfHalf(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline Half HalfOfFloat(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
__device__ inline uint16_t Bf16OfFloat(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
// Two of T, uint16_t (bf16) or Half, by one instruction: the first in the low half.
template <typename T>
__device__ uint32_t PairOfFloats(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// c += a b on one tile: a [16, 16] and b [16, 8] of T, bf16 (uint16_t) or f16, c [16, 8] of float,
// spread over the warp: with g = lane / 4 and t = lane % 4, two numbers per word, the first in its
// low half,
//   a: (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with the next column
//   b: (2t, g) (2t + 8, g), each with the next row
//   c: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"
template <typename T = uint16_t>
__device__ void MultiplyTile(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace muster::kernels::simt

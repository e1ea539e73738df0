// Host twin of casts between number types.
#include "worker_runtime/kernels/cast.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

// Integers only, so the compiler's vector loop and its tail agree by themselves.
void F32ToBf16(const float* __restrict__ x, uint16_t* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    y[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

void Bf16ToF32(const uint16_t* __restrict__ x, float* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    __builtin_memcpy(y + i, &bits, sizeof(bits));
  }
}

}  // namespace

template <Isa isa>
CastKernels MakeCast() {
  return {.f32_to_bf16 = &F32ToBf16, .bf16_to_f32 = &Bf16ToF32};
}
template CastKernels MakeCast<kIsa>();

}  // namespace muster::kernels

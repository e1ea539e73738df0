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

uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// Below 2^-14 the low bits after adding 0.5 are the rounded multiple of 2^-24.
void F32ToF16(const float* __restrict__ x, uint16_t* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOf(x[i]);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    const uint32_t number = magnitude < 0x38800000u ? small : normal;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    y[i] = static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? large : number));
  }
}

// Scaling by a power of two is exact, so that subnormals need no case of their own.
void F16ToF32(const uint16_t* __restrict__ x, float* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t sign = (x[i] & 0x8000u) << 16;
    const uint32_t magnitude = x[i] & 0x7fffu;
    const uint32_t number = BitsOf(FloatOf(magnitude << 13) * 0x1p112f);
    const uint32_t large = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    y[i] = FloatOf(sign | (magnitude >= 0x7c00u ? large : number));
  }
}

}  // namespace

template <Isa isa>
CastKernels MakeCast() {
  return {.f32_to_bf16 = &F32ToBf16,
          .bf16_to_f32 = &Bf16ToF32,
          .f32_to_f16 = &F32ToF16,
          .f16_to_f32 = &F16ToF32};
}
template CastKernels MakeCast<kIsa>();

}  // namespace muster::kernels

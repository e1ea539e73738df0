// Sums, scalings, casts and fillings of flat arrays: a thread has 16 bytes of the narrower type.
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

template <typename T>
__global__ void AddKernel(const T* a, const T* b, T* out, int64_t n) {
  constexpr int kCount = kVector<T>;
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  float x[kCount], y[kCount];
  LoadUpTo(a, first, n, x);
  LoadUpTo(b, first, n, y);
  for (int i = 0; i < kCount; ++i) x[i] += y[i];
  StoreUpTo(x, out, first, n);
}

template <typename T>
__global__ void FillKernel(float value, T* out, int64_t n) {
  constexpr int kCount = kVector<T>;
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  float numbers[kCount];
  for (int i = 0; i < kCount; ++i) numbers[i] = value;
  StoreUpTo(numbers, out, first, n);
}

template <typename T>
__global__ void ScaleKernel(const T* factor, const T* x, T* out, int64_t n) {
  constexpr int kCount = kVector<T>;
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  const float scale = ToFloat(factor[0]);
  float numbers[kCount];
  LoadUpTo(x, first, n, numbers);
  for (int i = 0; i < kCount; ++i) numbers[i] *= scale;
  StoreUpTo(numbers, out, first, n);
}

template <typename From, typename To>
__global__ void CastKernel(const From* x, To* y, int64_t n) {
  constexpr int kCount = kVector<float>;
  const int64_t first = GlobalThread() * kCount;
  if (first >= n) return;
  float numbers[kCount];
  LoadUpTo(x, first, n, numbers);
  StoreUpTo(numbers, y, first, n);
}

LaunchShape Flat(int64_t n, int per_thread) {
  return {.blocks = BlocksFor(n, kThreads * per_thread), .threads = kThreads};
}

}  // namespace

template <typename T>
LaunchError Add(StreamHandle stream, const T* a, const T* b, T* out, int64_t n) {
  return simt::Launch(&AddKernel<T>, Flat(n, kVector<T>), stream, a, b, out, n);
}
template LaunchError Add(StreamHandle, const float*, const float*, float*, int64_t);
template LaunchError Add(StreamHandle, const uint16_t*, const uint16_t*, uint16_t*, int64_t);
template LaunchError Add(StreamHandle, const Half*, const Half*, Half*, int64_t);

template <typename T>
LaunchError Fill(StreamHandle stream, float value, T* out, int64_t n) {
  return simt::Launch(&FillKernel<T>, Flat(n, kVector<T>), stream, value, out, n);
}
template LaunchError Fill(StreamHandle, float, float*, int64_t);
template LaunchError Fill(StreamHandle, float, uint16_t*, int64_t);
template LaunchError Fill(StreamHandle, float, Half*, int64_t);

template <typename T>
LaunchError Scale(StreamHandle stream, const T* factor, const T* x, T* out, int64_t n) {
  return simt::Launch(&ScaleKernel<T>, Flat(n, kVector<T>), stream, factor, x, out, n);
}
template LaunchError Scale(StreamHandle, const float*, const float*, float*, int64_t);
template LaunchError Scale(StreamHandle, const uint16_t*, const uint16_t*, uint16_t*, int64_t);
template LaunchError Scale(StreamHandle, const Half*, const Half*, Half*, int64_t);

LaunchError CastToBf16(StreamHandle stream, const float* x, uint16_t* y, int64_t n) {
  return simt::Launch(&CastKernel<float, uint16_t>, Flat(n, kVector<float>), stream, x, y, n);
}

LaunchError CastToF16(StreamHandle stream, const float* x, Half* y, int64_t n) {
  return simt::Launch(&CastKernel<float, Half>, Flat(n, kVector<float>), stream, x, y, n);
}

LaunchError CastToFloat(StreamHandle stream, const uint16_t* x, float* y, int64_t n) {
  return simt::Launch(&CastKernel<uint16_t, float>, Flat(n, kVector<float>), stream, x, y, n);
}

LaunchError CastToFloat(StreamHandle stream, const Half* x, float* y, int64_t n) {
  return simt::Launch(&CastKernel<Half, float>, Flat(n, kVector<float>), stream, x, y, n);
}

}  // namespace muster::kernels::cuda

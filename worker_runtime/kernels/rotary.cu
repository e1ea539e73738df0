// Rotary position embedding: a block has a line, of whose position it computes cosines and sines
// once, for all heads.
#include "worker_runtime/kernels/rotary.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi = 0x1.921fb54442d18p+0;
constexpr double kRestOfHalfPi = 0x1.1a62633145c07p-54;
constexpr double kRound = 0x1.8p+52;  // adding it rounds to an integer

// Those of RotaryFrequencies, as a kernel can have them among its arguments.
struct Frequencies {
  double of_pair[kRotaryPairsMax];
};

// The bits of rotary_host.cc.
__device__ inline void DirectionOf(double angle, double& cosine, double& sine) {
  constexpr int kTerms = 8;
  const double quarters = angle * kTwoOverPi + kRound - kRound;
  const double rest = fma(quarters, -kRestOfHalfPi, fma(quarters, -kHalfPi, angle));
  const double square = rest * rest;
  double c = 1, s = 1;
  for (int k = kTerms; k > 0; --k) {
    c = fma(c * square, -1.0 / ((2 * k - 1) * (2 * k)), 1.0);
    s = fma(s * square, -1.0 / (2 * k * (2 * k + 1)), 1.0);
  }
  s *= rest;
  const auto quarter = static_cast<int64_t>(quarters);
  cosine = quarter % 2 == 0 ? c : s;
  sine = quarter % 2 == 0 ? s : c;
  if (((quarter + 1) & 2) != 0) cosine = -cosine;
  if ((quarter & 2) != 0) sine = -sine;
}

template <typename T, int kCount>
__global__ void RotateKernel(RotaryShape shape, Frequencies frequencies, T* x) {
  const int pairs = static_cast<int>(shape.head_width / 2);
  auto* const cosines = static_cast<float*>(simt::SharedMemory());
  float* const sines = cosines + pairs;
  const int64_t row = blockIdx.x;
  const auto position = static_cast<double>(shape.first_position + row % shape.sequence);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    double cosine, sine;
    DirectionOf(position * frequencies.of_pair[i], cosine, sine);
    cosines[i] = static_cast<float>(cosine);
    sines[i] = static_cast<float>(shape.inverse ? -sine : sine);
  }
  __syncthreads();
  const int of_head = pairs / kCount;
  const int count = static_cast<int>(shape.heads) * of_head;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int head = i / of_head, pair = (i - head * of_head) * kCount;
    T* const at = x + row * shape.line + head * shape.head_width + pair;
    float a[kCount], b[kCount], cosine[kCount], sine[kCount];
    Load(at, a);
    Load(at + pairs, b);
    Load(cosines + pair, cosine);
    Load(sines + pair, sine);
    for (int k = 0; k < kCount; ++k) {
      const float turned = fmaf(b[k], 0.0f - sine[k], a[k] * cosine[k]);
      b[k] = fmaf(a[k], sine[k], b[k] * cosine[k]);
      a[k] = turned;
    }
    Store(a, at);
    Store(b, at + pairs);
  }
}

}  // namespace

template <typename T>
LaunchError Rotate(StreamHandle stream, RotaryShape shape, const RotaryFrequencies& frequencies,
                   T* x) {
  Frequencies own;
  for (int64_t i = 0; i < kRotaryPairsMax; ++i) own.of_pair[i] = frequencies.of_pair[i];
  const int64_t pairs = shape.head_width / 2;
  return ForWidth<T>(shape.line % kVector<T> == 0 ? pairs : 1, [&](auto count) {
    return simt::Launch(&RotateKernel<T, count()>,
                        {.blocks = shape.batch * shape.sequence,
                         .threads = kThreads,
                         .shared_bytes = 2 * sizeof(float) * static_cast<size_t>(pairs)},
                        stream, shape, own, x);
  });
}

template LaunchError Rotate(StreamHandle, RotaryShape, const RotaryFrequencies&, float*);
template LaunchError Rotate(StreamHandle, RotaryShape, const RotaryFrequencies&, uint16_t*);
template LaunchError Rotate(StreamHandle, RotaryShape, const RotaryFrequencies&, Half*);

}  // namespace muster::kernels::cuda

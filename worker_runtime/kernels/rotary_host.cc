// Host twin of rotary position embedding.
#include "worker_runtime/kernels/rotary.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPi = 0x1.921fb54442d18p+0;
constexpr double kRestOfHalfPi = 0x1.1a62633145c07p-54;
constexpr double kRound = 0x1.8p+52;  // adding it rounds to an integer

struct Direction {
  double cos, sin;
};

// By Taylor polynomials of what is left beside whole quarters of a turn. rotary.cu has the same.
Direction DirectionOf(double angle) {
  constexpr int kTerms = 8;
  const double quarters = angle * kTwoOverPi + kRound - kRound;
  const double rest = ScalarFma(quarters, -kRestOfHalfPi, ScalarFma(quarters, -kHalfPi, angle));
  const double square = rest * rest;
  double c = 1, s = 1;
  for (int k = kTerms; k > 0; --k) {
    c = ScalarFma(c * square, -1.0 / ((2 * k - 1) * (2 * k)), 1.0);
    s = ScalarFma(s * square, -1.0 / (2 * k * (2 * k + 1)), 1.0);
  }
  s *= rest;
  const auto quarter = static_cast<int64_t>(quarters);
  const Direction turned = quarter % 2 == 0 ? Direction{c, s} : Direction{s, c};
  return {((quarter + 1) & 2) == 0 ? turned.cos : -turned.cos,
          (quarter & 2) == 0 ? turned.sin : -turned.sin};
}

template <typename T>
void RotateHead(const T* cosines, const T* sines, int64_t pairs, T* head) {
  ForEachPack<T>(pairs, [=](int64_t i, auto load, auto store) {
    const Pack<T> a = load(head + i), b = load(head + pairs + i);
    const Pack<T> cosine = load(cosines + i), sine = load(sines + i);
    store(Fma(b, Pack<T>::Zero() - sine, a * cosine), head + i);
    store(Fma(a, sine, b * cosine), head + pairs + i);
  });
}

template <typename T>
void Rotate(RotaryShape shape, const double* frequencies, T* x) {
  const int64_t pairs = shape.head_width / 2;
  T cosines[kRotaryPairsMax], sines[kRotaryPairsMax];
  for (int64_t t = 0; t < shape.sequence; ++t) {
    const auto position = static_cast<double>(shape.first_position + t);
    for (int64_t i = 0; i < pairs; ++i) {
      const Direction direction = DirectionOf(position * frequencies[i]);
      cosines[i] = static_cast<T>(direction.cos);
      sines[i] = static_cast<T>(shape.inverse ? -direction.sin : direction.sin);
    }
    for (int64_t b = 0; b < shape.batch; ++b) {
      T* const line = x + (b * shape.sequence + t) * shape.line;
      for (int64_t head = 0; head < shape.heads; ++head) {
        RotateHead(cosines, sines, pairs, line + head * shape.head_width);
      }
    }
  }
}

}  // namespace

template <Isa isa, typename T>
RotaryKernels<T> MakeRotary() {
  return {.rotate = &Rotate<T>};
}
template RotaryKernels<float> MakeRotary<kIsa, float>();
template RotaryKernels<double> MakeRotary<kIsa, double>();

}  // namespace muster::kernels

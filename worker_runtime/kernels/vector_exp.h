// exp over a pack. Only `*_host.cc` includes it (see pack.h for the unnamed namespace).
#pragma once

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {  // NOLINT(google-build-namespaces): see pack.h.

template <typename T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e400p-1f;  // 15 bits, so that n * kLn2High is exact
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kRound = 0x1.8p+23f;  // adding it rounds to an integer in the low bits
  static constexpr float kLowest = -87.0f;     // below: 0
  static constexpr float kHighest = 88.0f;     // above: exp(88)
  static constexpr int kDegree = 7;
  static constexpr int kMantissaBits = 23;
};
template <>
struct ExpConstants<double> {
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fee00000p-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kRound = 0x1.8p+52;
  static constexpr double kLowest = -708.0;
  static constexpr double kHighest = 709.0;
  static constexpr int kDegree = 13;
  static constexpr int kMantissaBits = 52;
};

template <typename T>
struct InverseFactorials {
  T of[ExpConstants<T>::kDegree + 1];
  constexpr InverseFactorials() : of() {
    double factorial = 1;
    for (int k = 0; k <= ExpConstants<T>::kDegree; ++k) {
      if (k > 0) factorial *= k;
      of[k] = static_cast<T>(1 / factorial);
    }
  }
};

// 1/k! + r * (1/(k+1)! + r * ...), unrolled by recursion: loops over packs stay loops.
template <int k, typename T>
[[gnu::always_inline]] inline Pack<T> TaylorFrom(const Pack<T>& r) {
  constexpr InverseFactorials<T> kInverse{};
  const auto coefficient = Pack<T>::Broadcast(kInverse.of[k]);
  if constexpr (k == ExpConstants<T>::kDegree) {
    return coefficient;
  } else {
    return Fma(TaylorFrom<k + 1>(r), r, coefficient);
  }
}

// exp(x) = 2^n * exp(r) with n = round(x / ln 2), |r| <= ln(2) / 2, and exp(r) by its Taylor
// polynomial. Exactly 0 below kLowest (also for -inf) and exp(kHighest) above; NaN stays NaN.
// Error: below 2 units in the last place for float, 3 for double (kernels tests measure it).
template <typename T>
[[gnu::always_inline]] inline Pack<T> Exp(const Pack<T>& x) {
  using C = ExpConstants<T>;
  using Bits = typename Pack<T>::Bits;
  const Pack<T> clamped =
      Min(Pack<T>::Broadcast(C::kHighest), Max(Pack<T>::Broadcast(C::kLowest), x));
  const Pack<T> round = Pack<T>::Broadcast(C::kRound);
  const Pack<T> shifted = Fma(clamped, Pack<T>::Broadcast(C::kLog2E), round);
  const Pack<T> n = shifted - round;
  Pack<T> r = Fma(n, Pack<T>::Broadcast(-C::kLn2High), clamped);
  r = Fma(n, Pack<T>::Broadcast(-C::kLn2Low), r);
  const Pack<T> sum = TaylorFrom<0>(r);
  Pack<T> out;
  for (int p = 0; p < kNatives; ++p) {
    // The low bits of `shifted` are n; moved into the exponent they multiply by 2^n.
    const Bits exponent = reinterpret_cast<Bits>(shifted.part[p]) << C::kMantissaBits;
    const Bits scaled = reinterpret_cast<Bits>(sum.part[p]) + exponent;
    const auto value = reinterpret_cast<typename Pack<T>::Vector>(scaled);
    const auto bounded = x.part[p] < C::kLowest ? value - value : value;
    out.part[p] = x.part[p] == x.part[p] ? bounded : x.part[p];
  }
  return out;
}

}  // namespace
}  // namespace muster::kernels

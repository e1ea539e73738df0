#include "worker_runtime/engine/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "worker_runtime/nn/float_dispatch.h"

namespace muster::engine {

double ClipFactor(double norm, double norm_max) {
  if (norm_max == 0) return 1;
  return std::min(1.0, norm_max / (norm + 1e-6));
}

bool IsFinite(const Tensor& elements) {
  bool finite = true;
  WithFloat(elements.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto span = elements.span<T>();
    finite = std::all_of(span.begin(), span.end(), [](T x) { return std::isfinite(x); });
  });
  return finite;
}

}  // namespace muster::engine

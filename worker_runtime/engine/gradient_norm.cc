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
  WithElements(elements, [&](auto read, auto) {
    for (int64_t i = 0; finite && i < elements.num_elements(); ++i) finite = std::isfinite(read(i));
  });
  return finite;
}

}  // namespace muster::engine

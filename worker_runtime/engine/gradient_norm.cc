#include "worker_runtime/engine/gradient_norm.h"

#include <cmath>

#include "worker_runtime/nn/float_dispatch.h"

namespace muster::engine {

bool IsFinite(const Tensor& elements) {
  bool finite = true;
  WithElements(elements, [&](auto read, auto) {
    for (int64_t i = 0; finite && i < elements.num_elements(); ++i) finite = std::isfinite(read(i));
  });
  return finite;
}

}  // namespace muster::engine

#include "worker_runtime/engine/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "muster/sum_tree.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster::engine {

double GradientNorm(const Tensor& flat, std::vector<double>& partials) {
  partials.resize(kernels::NumNormBlocks(flat.num_elements()));
  WithFloat(flat.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::SumOfSquares<T>().blocks(flat.data<T>(), flat.num_elements(), partials.data());
  });
  return std::sqrt(TreeSum(partials));
}

double ClipFactor(double norm, double norm_max) {
  if (norm_max == 0) return 1;
  return std::min(1.0, norm_max / (norm + 1e-6));
}

std::string FirstNotFinite(const ParameterStore& store, const FlatState& state,
                           const Tensor& flat) {
  for (const auto& parameter : store.parameters()) {
    const Tensor part = state.Of(*parameter, flat);
    bool finite = true;
    WithFloat(part.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto elements = part.span<T>();
      finite = std::all_of(elements.begin(), elements.end(), [](T x) { return std::isfinite(x); });
    });
    if (!finite) return parameter->name();
  }
  return "";
}

}  // namespace muster::engine

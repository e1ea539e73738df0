#include <bit>

#include "worker_runtime/kernels/sum_of_squares.h"

namespace muster::kernels {

double TreeSum(absl::Span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const size_t left = std::bit_floor(values.size() - 1);
  return TreeSum(values.first(left)) + TreeSum(values.subspan(left));
}

}  // namespace muster::kernels

#include "worker_runtime/plan/use_trace.h"

#include <cstddef>

namespace muster::plan {

UseTrace AssumedTrace(int num_parameters) {
  UseTrace trace;
  for (int p = num_parameters; p-- > 0;) trace.gradients.push_back(p);
  return trace;
}

std::vector<int> ReadinessOf(const UseTrace& trace, int num_parameters) {
  std::vector<int> place(num_parameters, num_parameters);
  for (size_t i = 0; i < trace.gradients.size(); ++i) {
    place[trace.gradients[i]] = static_cast<int>(i);
  }
  return place;
}

}  // namespace muster::plan
